"""/api/v1/trials: describes and controls trials, with their curves and logs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
from starlette.responses import FileResponse, Response, StreamingResponse

from det_core.config import hparams_with_secrets, to_builtins
from det_core.errors import StoreError
from det_core.support.paths import open_regular
from det_core.train.media import FOLDER, find_file, find_media
from det_driver.provenance import written_in
from det_driver.store import CheckpointState, Store
from det_driver.store import Run as StoredRun
from det_node.launch import last_words

from .configuration import shortened
from .endpoints import NO_STORE, ApiRequest, Endpoint, Refused
from .experiments import make_like, metrics_of
from .searches import best_of, read
from .shapes import Made, State
from .trial_shapes import (
    Curve,
    Failure,
    IdsQuery,
    Log,
    LogSearchQuery,
    MediaFile,
    MediaList,
    MediaSeries,
    OneTrial,
    RankLog,
    Run,
    Saved,
    SeriesQuery,
    SeveralTrials,
    Trace,
    TrialLogQuery,
)

TRACE = "application/octet-stream"
MEDIA = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
"""The media types that are sent, by suffix, whatever the file contains."""
_BLOCK = 1 << 20
_LONGEST = 16 << 20
"""The most bytes of a line. A longer one, such as a progress bar that is redrawn, is cut."""
_SHOWN = 10_000
_TAIL = 64 << 10
"""The number of bytes at the end of a log in which the traceback is searched."""


def several(asked: ApiRequest) -> SeveralTrials:
    """Describe trials of one or several experiments. Those that do not exist are left out."""
    found = []
    for id in dict.fromkeys(map(int, asked.query.ids.split(","))):
        try:
            found.append(_describe(replace(asked, path={"id": id})))
        except Refused:
            continue
    return SeveralTrials(found)


def one(asked: ApiRequest) -> OneTrial:
    """Describe a trial: its runs with their causes, checkpoints, metrics, and how to load it."""
    return _describe(asked)


def _describe(asked: ApiRequest) -> OneTrial:
    logs = asked.trial.log_files()
    with asked.store() as store:
        row = store.trials.get(asked.id)
        experiment = store.experiments.get(row.experiment_id)
        names = metrics_of(store, row.id, row.batches, store.metrics.groups(row.experiment_id))
        saved = store.checkpoints.list(trial_id=row.id)
        runs = store.runs.list(row.id)
        parent = _parent(store, row.source_checkpoint)
        place = _events_of(store, row.experiment_id, row.id)
    best = best_of(saved, experiment.smaller_is_better)
    return OneTrial(
        id=row.id,
        experiment=row.experiment_id,
        experiment_name=experiment.name,
        state=str(row.state),
        hparams=row.hparams,
        why=row.exit_reason,
        failure=_failure(runs, logs) if row.state in ("ERROR", "INVALID_HP", "PAUSED") else None,
        batches=row.batches,
        best=row.best_metric,
        best_batches=row.best_batches,
        last=row.latest_metric,
        metric=experiment.metric,
        smaller_is_better=experiment.smaller_is_better,
        restarts=row.restarts,
        parent=parent,
        started=row.started,
        ended=row.ended,
        runs=[
            Run(
                *(
                    run.id,
                    run.number,
                    _state(run.outcome, run.reason),
                    run.started,
                    run.ended,
                    run.reason,
                    run.host,
                ),
                *(
                    run.first_batch,
                    [RankLog(k, f.stat().st_size) for k, f in logs.get(run.number, {}).items()],
                ),
            )
            for run in runs
        ],
        metrics=names,
        checkpoints=[
            Saved(c.uuid, c.batches, c.metric, c.size, str(c.state), c.created, c.uuid == best)
            for c in saved
        ],
        traces=[Trace(name, file.stat().st_size) for name, file in _traces(place).items()],
        load=_load(
            row.id, best is not None, any(c.state is CheckpointState.COMPLETED for c in saved)
        ),
    )


def _failure(runs: Sequence[StoredRun], logs: Mapping[int, Mapping[int, Path]]) -> Failure | None:
    """Return the last output of the last run, if it failed.

    It is that of the first rank with a traceback, else that of the first rank.
    """
    if not runs or not runs[-1].reason:
        return None
    number, found = runs[-1].number, []
    for rank, file in sorted(logs.get(runs[-1].number, {}).items()):
        with suppress(OSError), open_regular(file) as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
            found.append(Failure(number, rank, last_words(log.read())))
    return next(
        (each for each in found if each.text.startswith("Traceback")), found[0] if found else None
    )


def _state(outcome: str | None, reason: str | None) -> str:
    return "RUNNING" if outcome is None else "ERROR" if reason else outcome.upper()


def _parent(store: Store, uuid: str | None) -> int | None:
    # Its experiment may be deleted, or private.
    with suppress(StoreError):
        return store.checkpoints.get(uuid).trial_id if uuid else None
    return None


def _load(id: int, measured: bool, any_: bool) -> str:
    which = "top_checkpoint()" if measured else "select_checkpoint(latest=True)"
    if not any_:
        return ""
    return (
        f"from det_driver.client import Client\n\nmodel = Client().get_trial({id}).{which}.load()\n"
    )


def _traces(place: Path) -> dict[str, Path]:
    """Return the traces that the profiler wrote, by path in the trial's directory of events."""
    files = (
        file
        for file in place.glob("**/*.pt.trace.json*")
        if file.is_file() and not file.is_symlink()
    )
    return {file.relative_to(place).as_posix(): file for file in sorted(files)}


def trace(asked: ApiRequest) -> Response:
    """Return a trace as a file, for a viewer of traces."""
    file = _traces(_place(asked)).get(str(asked.path["path"]))
    if file is None:
        raise Refused(404, f"trial {asked.id} has no trace of that name")
    return FileResponse(file, 200, NO_STORE, TRACE, filename=f"trial-{asked.id}-{file.name}")


def _place(asked: ApiRequest) -> Path:
    """Return the directory of the trial's event files."""
    with asked.store() as store:
        row = store.trials.get(asked.trial.id)
        return _events_of(store, row.experiment_id, row.id)


def _events_of(store: Store, experiment: int, trial: int) -> Path:
    return store.experiment_dir(experiment) / "tensorboard" / f"trial-{trial}"


def media(asked: ApiRequest) -> MediaList:
    """List the images, tables and texts that a trial logged, by name."""
    found: dict[tuple[str, str], list[MediaFile]] = {}
    for each in find_media(_place(asked) / FOLDER):
        file = MediaFile(each.batches, each.path, each.size, each.written)
        found.setdefault((each.name, each.kind), []).append(file)
    return MediaList([MediaSeries(name, kind, files) for (name, kind), files in found.items()])  # type: ignore[arg-type]


def media_file(asked: ApiRequest) -> Response:
    """Return an image, a table or a text that a trial logged."""
    file = find_file(_place(asked) / FOLDER, str(asked.path["path"]))
    if file is None:
        raise Refused(404, f"trial {asked.id} has logged nothing of that name")
    return FileResponse(file, 200, NO_STORE, MEDIA[file.suffix])


def series(asked: ApiRequest) -> Curve:
    """Return one metric of a trial as a curve. Minima and maxima are kept."""
    query: SeriesQuery = asked.query
    within = None
    if query.start is not None or query.end is not None:
        within = (
            query.start if query.start is not None else 0.0,
            query.end if query.end is not None else 1e15,
        )
    found = asked.trial.series(query.metric, query.group, query.width, within, query.by)
    best = None
    if query.group == "validation" and query.by == "batches":
        with asked.store() as store:
            row = store.trials.get(asked.id)
            if (
                store.experiments.get(row.experiment_id).metric == query.metric
                and row.best_metric is not None
            ):
                best = (float(row.best_batches or 0), row.best_metric)
    return Curve(found.reports, found.x, [*found.y], best)


def log(asked: ApiRequest) -> Log:
    """Return a part of the log of a rank in a run."""
    return read(_file(asked, asked.query.run, asked.query.rank), asked.query)


def _file(asked: ApiRequest, run: int | None, rank: int) -> Path:
    files = asked.trial.log_files()
    number = run if run is not None else max(files, default=1)
    if rank not in files.get(number, {}):
        raise Refused(404, f"run {number} of trial {asked.id} has no log of rank {rank}")
    return files[number][rank]


def search(asked: ApiRequest) -> Response:
    """Stream the lines of a log that contain a text, as JSON, each with its offset in bytes."""
    query: LogSearchQuery = asked.query
    file = _file(asked, query.run, query.rank)
    lines = (
        msgspec.json.encode({"offset": at, "line": line}) + b"\n"
        for at, line in found_in(file, query.text, query.first)
    )
    return StreamingResponse(lines, 200, NO_STORE, "application/x-ndjson")


def found_in(file: Path, text: str, first: int) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that contain a text, ignoring case, with their offsets.

    The search begins at the byte `first`.
    """
    wanted = re.compile(re.escape(text.encode()), re.IGNORECASE)
    with open_regular(file) as log:
        at, rest = log.seek(first), b""
        while block := log.read(_BLOCK):
            whole = rest + block
            cut = whole.rfind(b"\n") + 1 or (len(whole) if len(whole) > _LONGEST else 0)
            yield from _lines(whole[:cut], at, wanted)
            at, rest = at + cut, whole[cut:]
        yield from _lines(rest, at, wanted)


def _lines(data: bytes, at: int, wanted: re.Pattern[bytes]) -> Iterator[tuple[int, str]]:
    end = 0
    while (match := wanted.search(data, end)) is not None:
        start, after = data.rfind(b"\n", 0, match.start()) + 1, data.find(b"\n", match.end())
        end = after if after >= 0 else len(data)
        yield at + start, data[start : min(end, start + _SHOWN)].decode(errors="replace")


def kill(asked: ApiRequest) -> State:
    """Kill a trial. The search continues without it."""
    asked.trial.kill()
    return State(asked.trial.state)


def go_on(asked: ApiRequest) -> Made:
    """Create and start an experiment from a trial's latest checkpoint and hyperparameters."""
    asked.trial.select_checkpoint(latest=True)
    experiment = asked.trial.get_experiment()
    with asked.store() as store:
        complete = store.experiments.config(experiment.id)
        written = written_in(store.experiment_dir(experiment.id))
    config = shortened(complete, written)
    hparams = hparams_with_secrets(asked.trial.hparams, complete)
    searcher = to_builtins(complete)["searcher"] or {}
    kept = {
        key: searcher[key]
        for key in ("metric", "smaller_is_better", "max_length")
        if key in searcher
    }
    config |= {
        "name": f"{experiment.name} (trial {asked.id})",
        "hyperparameters": {
            name: {"type": "const", "val": value} for name, value in hparams.items()
        },
        "searcher": {"name": "single", **kept, "source_trial_id": asked.id},
    }
    return make_like(asked, experiment.id, config)


_ONE = "/trials/{id}"
ENDPOINTS = (
    Endpoint(method="GET", path="/trials", does=several, response=SeveralTrials, query=IdsQuery),
    Endpoint(method="GET", path=_ONE, does=one, response=OneTrial),
    Endpoint(method="GET", path=f"{_ONE}/series", does=series, response=Curve, query=SeriesQuery),
    Endpoint(method="GET", path=f"{_ONE}/log", does=log, response=Log, query=TrialLogQuery),
    Endpoint(
        method="GET",
        path=f"{_ONE}/log/search",
        does=search,
        response="application/x-ndjson",
        query=LogSearchQuery,
    ),
    Endpoint(method="GET", path=f"{_ONE}/traces/{{path}}", does=trace, response=TRACE),
    Endpoint(method="GET", path=f"{_ONE}/media", does=media, response=MediaList),
    Endpoint(
        method="GET",
        path=f"{_ONE}/media/{{path}}",
        does=media_file,
        response=", ".join(MEDIA.values()),
    ),
    Endpoint(method="POST", path=f"{_ONE}/kill", does=kill, response=State),
    Endpoint(
        method="POST",
        path=f"{_ONE}/continue",
        does=go_on,
        response=Made,
        status=201,
        starts=True,
    ),
)
"""The endpoints about trials."""
