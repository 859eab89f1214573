"""/api/v1/experiments/N/…: what came of one: its trials, curves, picture, checkpoints, code, log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from starlette.responses import Response

from det_core.config import from_json
from det_core.plugins import Plugins
from det_driver.client import read_log
from det_driver.store import CheckpointRow, CheckpointState, Store

from .configuration import mistakes
from .endpoints import NO_STORE, Asked, Endpoint, Refused
from .lists import Rows
from .picture import picture
from .shapes import Checked, Checkpoints, CodeFile, Curves, CurvesQuery, Mistakes, Search, Since, TrialColumns, Trials
from .trial_shapes import Log, LogQuery

TEXT = "text/plain; charset=utf-8"
MOST_FILES = 5000
MOST_BYTES = 4 << 20
"""Of a file of the code: more is cut."""
_SHOWN = {"best": "best_metric", "last": "latest_metric", "why": "exit_reason"}


def trials(asked: Asked) -> Trials:
    """List the trials of an experiment in columns, with what was searched."""
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
        dict(zip(TrialColumns.__struct_fields__, map(list, zip(*found, strict=True)), strict=True)) if found else {}
    )
    names = dict.fromkeys(name for _, hparams in newer.rows for name in hparams)
    return Trials(
        newer.version,
        newer.whole,
        TrialColumns(**{name: columns.get(name, []) for name in TrialColumns.__struct_fields__}),
        {name: [hparams.get(name) for _, hparams in newer.rows] for name in names},
    )


def _rows(asked: Asked, rows: Rows, columns: Any, hparams: Any) -> dict[int, Any]:
    """Return the rows of changed trials: the values of the columns, and what was searched."""
    sources = columns["source_checkpoint"]
    parents: dict[str, int] = {}
    if any(sources):
        with asked.store() as store:
            parents = {row.uuid: row.trial_id for row in store.checkpoints.list(experiment_id=asked.id)}
    took = [
        end - start if start is not None and end is not None else None
        for start, end in zip(columns["started"], columns["ended"], strict=True)
    ]
    made = {"seconds": took, "parent": [parents.get(uuid or "") for uuid in sources]}
    shown = [made.get(name) or columns[_SHOWN.get(name, name)] for name in TrialColumns.__struct_fields__]
    values = zip(*shown, strict=True)
    chosen = zip(*hparams.values(), strict=True) if hparams else ((),) * len(sources)
    return {v[0]: (v, dict(zip(hparams, of, strict=True))) for v, of in zip(values, chosen, strict=True)}


def curves(asked: Asked) -> Curves:
    """Return one metric of several trials, by default the searcher's of the best ones."""
    query: CurvesQuery = asked.query
    metric = query.metric or asked.experiment.metric
    with asked.store() as store:
        if query.ids is not None:
            known = {row.id for row in store.trials.list(asked.id)}
            chosen = [id for id in dict.fromkeys(map(int, query.ids.split(","))) if id in known]
        else:
            chosen = [row.id for row in store.trials.list(asked.id, best_first=True, limit=query.top)]
        found = {id: store.metrics.series(id, query.group, metric) for id in chosen}
    found = {id: curve for id, curve in found.items() if curve[0]}
    return Curves([*found], [[*xs] for xs, _ in found.values()], [[*ys] for _, ys in found.values()])


def search(asked: Asked) -> Search:
    """Return how to draw a search: the rungs of its brackets, the rounds of its population, or only curves."""
    assert asked.experiment.id == asked.id
    with asked.store() as store:
        return picture(store, asked.id, from_json(store.experiments.get(asked.id).config))


def importances(asked: Asked) -> dict[str, float]:
    """Return what mattered: of the trials' differences, the share that each hyperparameter alone explains."""
    return asked.experiment.importances()


def checkpoints(asked: Asked) -> Checkpoints:
    """List an experiment's checkpoints, those too that were deleted."""
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
    """Return the uuid of the best checkpoint that is whole; None where none was measured."""
    whole = [row for row in rows if row.state is CheckpointState.COMPLETED and row.metric is not None]
    sign = 1 if smaller_is_better else -1
    return min(whole, key=lambda row: (sign * (row.metric or 0.0), row.created)).uuid if whole else None


def code(asked: Asked) -> list[CodeFile]:
    """List the files of the code that an experiment runs."""
    place = _code(asked)
    found = []
    for folder, names, files in os.walk(place):
        names.sort()
        paths = (Path(folder, name) for name in sorted(files))
        found += [CodeFile(p.relative_to(place).as_posix(), p.stat().st_size) for p in paths if _within(place, p)]
        if len(found) >= MOST_FILES:
            break
    return found[:MOST_FILES]


def file(asked: Asked) -> Response:
    """Return a file of the code, as text; of a large one the beginning."""
    place = _code(asked)
    wanted = str(asked.path["path"])
    path = place / wanted
    if "\0" in wanted or wanted.startswith("/") or not _within(place, path):
        raise Refused(404, f"experiment {asked.id} has no file of that name in its code")
    with path.open("rb") as text:
        return Response(text.read(MOST_BYTES), 200, NO_STORE, TEXT)


def _code(asked: Asked) -> Path:
    with asked.store() as store:
        return store.code_dir(asked.experiment.id)


def _within(place: Path, path: Path) -> bool:
    """Tell whether a path leads to a file below a directory, also by its links."""
    try:
        return path.resolve().is_relative_to(place.resolve()) and path.is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def log(asked: Asked) -> Log:
    """Return a part of what drivers in the background wrote."""
    with asked.store() as store:
        return read(store.experiment_dir(asked.experiment.id) / "driver.log", asked.query)


def read(file: Path, query: LogQuery) -> Log:
    """Return a part of a log; nothing where nothing has been written."""
    try:
        return Log(*read_log(file, query.offset, query.limit))
    except OSError:
        return Log("", 0, 0, 0)


def check(asked: Asked) -> Mistakes:
    """Check a configuration: what `det check --config-only` says of it, each with its line and column."""
    place = None
    if asked.body.experiment is not None:
        with Store.reader(asked.home) as store:
            place = store.code_dir(asked.body.experiment)
    there = place if place is not None and place.is_dir() else None
    return Mistakes(mistakes(asked.body.config, there, asked.home, Plugins.installed()))


_ONE = "/experiments/{id}"
ENDPOINTS = (
    Endpoint(method="GET", path=f"{_ONE}/trials", does=trials, answer=Trials, query=Since),
    Endpoint(method="GET", path=f"{_ONE}/curves", does=curves, answer=Curves, query=CurvesQuery),
    Endpoint(method="GET", path=f"{_ONE}/search", does=search, answer=Search),
    Endpoint(method="GET", path=f"{_ONE}/importances", does=importances, answer=dict[str, float]),
    Endpoint(method="GET", path=f"{_ONE}/checkpoints", does=checkpoints, answer=Checkpoints),
    Endpoint(method="GET", path=f"{_ONE}/code", does=code, answer=list[CodeFile]),
    Endpoint(method="GET", path=f"{_ONE}/code/{{path}}", does=file, answer="text/plain"),
    Endpoint(method="GET", path=f"{_ONE}/log", does=log, answer=Log, query=LogQuery),
    Endpoint(method="POST", path="/check", does=check, answer=Mistakes, body=Checked),
)
"""Those that are about what came of an experiment."""
