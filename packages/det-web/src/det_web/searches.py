"""/api/v1/experiments/N/…: the trials, curves, checkpoints, code and logs of an experiment."""

from __future__ import annotations

import os
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.responses import Response, StreamingResponse

from det_core.config import from_json
from det_core.errors import StoreError
from det_core.hooks import Plugins
from det_core.support.paths import open_regular
from det_driver.client import FEWEST_TRIALS, read_log
from det_driver.store import CheckpointRow, CheckpointState

from .configuration import mistakes
from .endpoints import NO_STORE, ApiRequest, Endpoint, Refused
from .experiments import below
from .lists import Rows
from .picture import picture
from .shapes import (
    Checked,
    Checkpoints,
    CodeFile,
    Curves,
    CurvesQuery,
    Importances,
    Mistakes,
    Search,
    Since,
    TrialColumns,
    Trials,
)
from .trial_shapes import AllLogs, AllLogsQuery, Log, LogQuery, OneLog

TAR = "application/x-tar"
TEXT = "text/plain; charset=utf-8"
MOST_FILES = 5000
MOST_BYTES = 4 << 20
"""The most bytes of a code file that are sent. The rest is cut."""
_SHOWN = {"best": "best_metric", "last": "latest_metric", "why": "exit_reason"}


def trials(asked: ApiRequest) -> Trials:
    """List the trials of an experiment in columns, with the hyperparameters that are searched."""
    experiment = asked.experiment
    rows = asked.lists.trials(asked.id)
    with rows.lock:
        table = experiment.table(since=rows.memory)
        rows.memory = table
        if table.columns["id"]:
            rows.update(_rows(asked, rows, table.columns, table.hparams), set())
        newer = rows.newer(asked.query.since)
    found = [values for values, _ in newer.rows]
    columns = (
        dict(zip(TrialColumns.__struct_fields__, map(list, zip(*found, strict=True)), strict=True))
        if found
        else {}
    )
    names = dict.fromkeys(name for _, hparams in newer.rows for name in hparams)
    return Trials(
        newer.version,
        newer.whole,
        TrialColumns(**{name: columns.get(name, []) for name in TrialColumns.__struct_fields__}),
        {name: [hparams.get(name) for _, hparams in newer.rows] for name in names},
    )


def _rows(asked: ApiRequest, rows: Rows, columns: Any, hparams: Any) -> dict[int, Any]:
    """Return the rows of changed trials: the columns' values, and the searched hyperparameters."""
    sources = columns["source_checkpoint"]
    parents: dict[str, int] = {}
    if any(sources):
        with asked.store() as store:
            parents = {
                row.uuid: row.trial_id for row in store.checkpoints.list(experiment_id=asked.id)
            }
    took = [
        end - start if start is not None and end is not None else None
        for start, end in zip(columns["started"], columns["ended"], strict=True)
    ]
    made = {"seconds": took, "parent": [parents.get(uuid or "") for uuid in sources]}
    shown = [
        made.get(name) or columns[_SHOWN.get(name, name)] for name in TrialColumns.__struct_fields__
    ]
    values = zip(*shown, strict=True)
    chosen = zip(*hparams.values(), strict=True) if hparams else ((),) * len(sources)
    return {
        v[0]: (v, dict(zip(hparams, of, strict=True))) for v, of in zip(values, chosen, strict=True)
    }


def curves(asked: ApiRequest) -> Curves:
    """Return one metric of several trials, by default the searcher's metric of the best trials."""
    query: CurvesQuery = asked.query
    metric = query.metric or asked.experiment.metric
    with asked.store() as store:
        if query.ids is not None:
            known = {row.id for row in store.trials.list(asked.id)}
            chosen = [id for id in dict.fromkeys(map(int, query.ids.split(","))) if id in known]
        else:
            chosen = [
                row.id for row in store.trials.list(asked.id, best_first=True, limit=query.top)
            ]
        along = "time" if query.by == "seconds" else query.by
        found = {id: store.metrics.series(id, query.group, metric, along=along) for id in chosen}
        if along == "time":
            began = {id: store.trials.get(id).started or 0.0 for id in chosen}
            found = {
                id: (array("d", (x - began[id] for x in xs)), ys) for id, (xs, ys) in found.items()
            }
    found = {id: curve for id, curve in found.items() if curve[0]}
    return Curves(
        [*found], [[*xs] for xs, _ in found.values()], [[*ys] for _, ys in found.values()]
    )


def search(asked: ApiRequest) -> Search:
    """Return how to draw a search: rungs of brackets, rounds of a population, or only curves."""
    assert asked.experiment.id == asked.id
    with asked.store() as store:
        return picture(store, asked.id, from_json(store.experiments.get(asked.id).config))


def importances(asked: ApiRequest) -> Importances:
    """Return the share of the trials' differences that each hyperparameter alone explains."""
    return Importances(*asked.experiment.what_mattered(), FEWEST_TRIALS)


def checkpoints(asked: ApiRequest) -> Checkpoints:
    """List an experiment's checkpoints, deleted ones too."""
    smaller = asked.experiment.smaller_is_better
    with asked.store() as store:
        rows = store.checkpoints.list(experiment_id=asked.id)
    best = best_of(rows, smaller)
    return Checkpoints(
        uuid=[row.uuid for row in rows],
        trial=[row.trial_id for row in rows],
        batches=[row.batches for row in rows],
        metric=[row.metric for row in rows],
        size=[row.size for row in rows],
        state=[str(row.state) for row in rows],
        created=[row.created for row in rows],
        best=[row.uuid == best for row in rows],
    )


def best_of(rows: list[CheckpointRow], smaller_is_better: bool) -> str | None:
    """Return the uuid of the best complete checkpoint. None where none has a metric."""
    whole = [
        row for row in rows if row.state is CheckpointState.COMPLETED and row.metric is not None
    ]
    sign = 1 if smaller_is_better else -1
    return (
        min(whole, key=lambda row: (sign * (row.metric or 0.0), row.created)).uuid
        if whole
        else None
    )


def checkpoint(asked: ApiRequest) -> Response:
    """Stream a checkpoint's files as a tar archive, verified against its manifest."""
    uuid = str(asked.path["path"])
    with asked.store() as store:
        known = {row.uuid for row in store.checkpoints.list(experiment_id=asked.experiment.id)}
    if uuid not in known:
        raise Refused(404, f"experiment {asked.id} has no checkpoint {uuid}")
    parts = asked.client.get_checkpoint(uuid).archive()
    # The first part is empty. It comes when the files are verified, so that errors get a status of
    # their own.
    next(parts)
    name = {"content-disposition": f'attachment; filename="checkpoint-{uuid}.tar"'}
    return StreamingResponse(parts, 200, NO_STORE | name, TAR)


def code(asked: ApiRequest) -> list[CodeFile]:
    """List the files of the code that an experiment runs."""
    place = _code(asked)
    found = []
    for folder, names, files in os.walk(place):
        names.sort()
        paths = (Path(folder, name) for name in sorted(files))
        found += [
            CodeFile(p.relative_to(place).as_posix(), p.stat().st_size)
            for p in paths
            if _within(place, p)
        ]
        if len(found) >= MOST_FILES:
            break
    return found[:MOST_FILES]


def file(asked: ApiRequest) -> Response:
    """Return a file of the code as text. A large file is cut."""
    place = _code(asked)
    wanted = str(asked.path["path"])
    path = place / wanted
    if "\0" in wanted or wanted.startswith("/") or not _within(place, path):
        raise Refused(404, f"experiment {asked.id} has no file of that name in its code")
    with open_regular(path) as text:
        return Response(text.read(MOST_BYTES), 200, NO_STORE, TEXT)


def _code(asked: ApiRequest) -> Path:
    with asked.store() as store:
        return store.code_dir(asked.experiment.id)


def _within(place: Path, path: Path) -> bool:
    """Return whether a path leads to a file below a directory, with links followed."""
    try:
        return path.resolve().is_relative_to(place.resolve()) and path.is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def log(asked: ApiRequest) -> Log:
    """Return a part of the output of background drivers."""
    with asked.store() as store:
        return read(store.experiment_dir(asked.experiment.id) / "driver.log", asked.query)


def logs(asked: ApiRequest) -> AllLogs:
    """Return the ends of all trials' logs, in the order in which their runs began.

    Where there are more than `most`, the logs of the oldest runs are left out.
    """
    query: AllLogsQuery = asked.query
    with asked.store() as store:
        _ = asked.experiment
        runs = [
            (row.id, run) for row in store.trials.list(asked.id) for run in store.runs.list(row.id)
        ]
    files = [
        (trial, run, int(file.stem[5:]), file)
        for trial, run in sorted(runs, key=lambda each: (each[1].started, each[0]))
        for file in sorted(run.log_dir.glob("rank-*.log"), key=lambda each: int(each.stem[5:]))
    ]
    chosen = files[-query.most :]
    parts = []
    for trial, run, rank, file in chosen:
        part = read(file, LogQuery(-query.limit, query.limit))
        parts.append(OneLog(trial, run.number, rank, run.started, run.ended, run.reason, part))
    return AllLogs(parts, len(files) - len(chosen))


def read(file: Path, query: LogQuery) -> Log:
    """Return a part of a log. It is empty where the file does not exist."""
    try:
        return Log(*read_log(file, query.offset, query.limit))
    except OSError:
        return Log("", 0, 0, 0)


def check(asked: ApiRequest) -> Mistakes:
    """Return the mistakes in a configuration that `det check --config-only` finds."""
    place = id = None
    if asked.body.experiment is not None:
        with suppress(StoreError), asked.store() as store:
            id = store.experiments.get(asked.body.experiment).id
            place = store.code_dir(id)
    there = place if place is not None and place.is_dir() else None
    found = mistakes(asked.body.config, below(asked, id), there, asked.home, Plugins.installed())
    return Mistakes(found)


_ONE = "/experiments/{id}"
ENDPOINTS = (
    Endpoint(method="GET", path=f"{_ONE}/trials", does=trials, response=Trials, query=Since),
    Endpoint(method="GET", path=f"{_ONE}/curves", does=curves, response=Curves, query=CurvesQuery),
    Endpoint(method="GET", path=f"{_ONE}/search", does=search, response=Search),
    Endpoint(method="GET", path=f"{_ONE}/importances", does=importances, response=Importances),
    Endpoint(method="GET", path=f"{_ONE}/checkpoints", does=checkpoints, response=Checkpoints),
    Endpoint(method="GET", path=f"{_ONE}/checkpoints/{{path}}", does=checkpoint, response=TAR),
    Endpoint(method="GET", path=f"{_ONE}/code", does=code, response=list[CodeFile]),
    Endpoint(method="GET", path=f"{_ONE}/code/{{path}}", does=file, response="text/plain"),
    Endpoint(method="GET", path=f"{_ONE}/log", does=log, response=Log, query=LogQuery),
    Endpoint(method="GET", path=f"{_ONE}/logs", does=logs, response=AllLogs, query=AllLogsQuery),
    Endpoint(method="POST", path="/check", does=check, response=Mistakes, body=Checked),
)
"""The endpoints about the results of an experiment."""
