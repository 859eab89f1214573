"""Queries and changes of a home, by which a server answers a client on another machine, too.

Their arguments and results are plain data. Everybody may execute a query. A change belongs to the
experiment or trial that is its first argument, or to all editors.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal, get_type_hints

import msgspec

from det_core.checkpoint import read_checkpoint
from det_core.checkpoint.code import code_files
from det_core.config import AdaptiveAsha, AsyncHalving, ExperimentConfig, Hyperband, from_json
from det_core.errors import DetError, ExperimentBusy, StoreError
from det_core.hooks import extensions_of

from .. import driver
from ..driver import Deleter, send_command, stop_detached
from ..search import as_named
from ..store import (
    CheckpointRow,
    CheckpointState,
    Description,
    ExperimentRow,
    ExperimentSummary,
    Metric,
    ModelChanges,
    ModelRow,
    ModelVersionRow,
    Store,
    TrialRow,
    TrialsMark,
    VersionChanges,
    Visible,
)
from ..store import check_trusted as check_trusted_experiment
from ._home import Home
from ._reading import LogPart, Series, read_log
from ._space import Space

_TELLING = 5000
_MOST_REPORTS = 2000
_LONGEST_PART = 1 << 20
Measured = list[tuple[dict[str, Any], float]]


# Experiments


def experiment(home: Home, id: int) -> ExperimentRow:
    """Return the row of an experiment."""
    with home.reader() as store:
        return store.experiments.get(id)


def experiments(home: Home, archived: bool | None, limit: int | None) -> list[ExperimentRow]:
    """Return the rows of experiments, the newest first."""
    with home.reader() as store:
        listed = store.experiments.list(archived=archived, limit=limit)
        return [each.experiment for each in listed]


def summary(home: Home, id: int) -> tuple[ExperimentSummary, bool]:
    """Return the summary of an experiment, and whether its driver is gone."""
    with home.reader() as store:
        found = store.experiments.summary(id)
        return found, store.experiments.orphaned(found.experiment)


def code_names(home: Home, id: int) -> list[str]:
    """Return the names of the files of an experiment's code."""
    with home.reader() as store:
        return [
            file.as_posix() for file in code_files(store.code_dir(store.experiments.get(id).id))
        ]


def code_file(home: Home, id: int, name: str) -> tuple[bytes, bool]:
    """Return the content of a file of an experiment's code, and whether it is executable."""
    if name not in code_names(home, id):
        raise StoreError(f"the code of experiment {id} has no file {name!r}")
    with home.reader() as store:
        file = store.code_dir(id) / name
    return file.read_bytes(), bool(file.stat().st_mode & 0o100)


def send(home: Home, id: int, kind: Literal["pause", "cancel", "kill"]) -> None:
    """Send a command to the driver of an experiment."""
    with home.writer() as store:
        send_command(store, id, kind)


def activate(home: Home, id: int) -> None:
    """Resume an experiment with a driver in the background."""
    home.start(id)


def describe(home: Home, id: int, changes: Description) -> None:
    """Change the name, the description or the labels of an experiment."""
    with home.writer() as store:
        driver.describe(store, id, **changes)


def archive(home: Home, id: int, archived: bool) -> None:
    """Hide an experiment in listings, or show it again."""
    with home.writer() as store:
        state = store.experiments.get(id).state
        if archived and not state.ended:
            raise StoreError(
                f"experiment {id} is {state.lower()}; only one that has ended can be archived"
            )
        store.experiments.update(id, archived=archived)


def check_deletable(home: Home, id: int) -> None:
    """Raise the error with which `delete` would refuse."""
    with home.reader() as store:
        if store.experiments.driven(id):
            raise ExperimentBusy(f"experiment {id} is being driven; stop it first: det pause {id}")
        _check_free(store, id)


def delete(home: Home, id: int, keep_checkpoints: bool) -> list[str]:
    """Delete an experiment, and return the uuids of the checkpoints that stay nevertheless."""
    with home.writer() as store, store.models.deleting(), store.lock(id):
        _check_free(store, id)
        stop_detached(store, id, at_once=True)
        rows = [] if keep_checkpoints else store.checkpoints.list(experiment_id=id)
        needed = store.checkpoints.elsewhere(id) if rows else set()
        doomed = [
            row.uuid
            for row in rows
            if row.uuid not in needed and row.state is not CheckpointState.DELETED
        ]
        if doomed:
            config = store.experiments.config(id, extensions_of(home.plugins))
            deleter = Deleter(store, id, config, home.plugins)
            for uuid in doomed:
                if not deleter.may_delete(uuid):
                    needed.add(uuid)
                    continue
                deleter.delete(uuid)
        store.experiments.delete(id)
    return sorted(needed)


def _check_free(store: Store, id: int) -> None:
    store.models.check_free(row.uuid for row in store.checkpoints.list(experiment_id=id))


# Trials


def trial(home: Home, id: int) -> TrialRow:
    """Return the row of a trial."""
    with home.reader() as store:
        return store.trials.get(id)


def trials(
    home: Home, experiment_id: int, best_first: bool = False, limit: int | None = None
) -> list[TrialRow]:
    """Return the rows of an experiment's trials."""
    with home.reader() as store:
        return store.trials.list(experiment_id, best_first=best_first, limit=limit)


def changed(
    home: Home, experiment_id: int, since: TrialsMark | None
) -> tuple[list[TrialRow], TrialsMark]:
    """Return the rows of trials that have changed since a mark, and a mark of now."""
    with home.reader() as store:
        rows, mark = store.trials.changed(experiment_id, since)
        return [*rows], mark


def measured(home: Home, experiment_id: int, most: int | None) -> Measured:
    """Return the chosen hyperparameters and the best metric of trials."""
    with home.reader() as store:
        space = Space(from_json(store.experiments.get(experiment_id).config).hyperparameters)
        return [
            (space.chosen(hparams), best)
            for hparams, best in store.trials.measured(experiment_id, most)
        ]


class _Validated(msgspec.Struct):
    trial: int
    length: int
    metrics: dict[str, Any]


_validated = msgspec.json.Decoder(_Validated).decode


def compared(home: Home, experiment_id: int) -> tuple[int | None, Measured]:
    """Return the length at which most trials reported, and their values there.

    If all trials train equally long, there is no such length, and the values are the best ones.
    Otherwise best values would rank trials by their rungs, as longer training gives better values.
    """
    with home.reader() as store:
        config = from_json(store.experiments.get(experiment_id).config)
        rung = _at_one_length(store, experiment_id, config)
    return rung or (None, measured(home, experiment_id, _TELLING))


def _at_one_length(store: Store, id: int, config: ExperimentConfig) -> tuple[int, Measured] | None:
    searcher = as_named(config.searcher, config.hyperparameters)
    if not isinstance(searcher, AdaptiveAsha | AsyncHalving | Hyperband):
        return None
    if getattr(searcher, "max_time", None) is not None:
        return None
    reports: dict[int, dict[int, float]] = defaultdict(dict)
    for event in store.journal.read(id, having='"validated"'):
        try:
            report = _validated(event.data)
        except msgspec.DecodeError:
            # Other events contain the text too.
            continue
        value = report.metrics.get(searcher.metric)
        if isinstance(value, int | float) and not isinstance(value, bool):
            reports[report.length][report.trial] = value
    if not reports:
        return None
    length = max(reports, key=lambda each: (len(reports[each]), each))
    values, space = reports[length], Space(config.hyperparameters)
    found = [row for row in store.trials.list(id) if row.request in values]
    step = -(-len(found) // _TELLING) or 1
    return length, [(space.chosen(row.hparams), values[row.request]) for row in found[::step]]


def cancel_trial(home: Home, id: int, now: bool) -> None:
    """Cancel a trial."""
    with home.writer() as store:
        driver.cancel_trial(store, id, now=now)


# Reports and logs


def reports(home: Home, trial_id: int, group: str | None, first: int) -> list[Metric]:
    """Return some reports of a trial from the position `first` on, all of each position."""
    found: list[Metric] = []
    with home.reader() as store, store.transaction():
        for each in store.metrics.read(trial_id=trial_id, group=group, first=first):
            if len(found) >= _MOST_REPORTS and each.batches != found[-1].batches:
                break
            found.append(each)
    return found


def curve(
    home: Home,
    trial_id: int,
    metric: str,
    group: str,
    width: int,
    range: tuple[float, float] | None,
    by: Literal["batches", "epochs", "seconds"],
) -> Series:
    """Return one metric of a trial as a curve."""
    first, last = (
        (max(0, int(range[0])), int(range[1]))
        if range is not None and by == "batches"
        else (0, None)
    )
    width = max(1, width)
    along = "time" if by == "seconds" else by
    with home.reader() as store:
        xs, ys = store.metrics.series(trial_id, group, metric, along=along, first=first, last=last)
        began = store.trials.get(trial_id).started if by == "seconds" else None
    if began is not None:
        xs = array("d", (x - began for x in xs))
    if range is not None:
        start, end = bisect_left(xs, range[0]), bisect_right(xs, range[1])
        xs, ys = xs[start:end], ys[start:end]
    if len(xs) <= 2 * width + 2:
        return Series(len(xs), [*xs], [*ys])
    kept = sorted({0, len(xs) - 1, *_extremes(xs, ys, width)})
    return Series(len(xs), [xs[i] for i in kept], [ys[i] for i in kept])


def _extremes(xs: array[float], ys: array[float], width: int) -> Iterator[int]:
    start, low, step = 0, xs[0], (xs[-1] - xs[0]) / width
    for part in range(1, width + 1):
        end = bisect_left(xs, low + part * step, start) if part < width else len(xs)
        values = ys[start:end]
        # No value compares less than NaN.
        if values and math.isnan(values[0]):
            values = array("d", (value for value in values if not math.isnan(value))) or values
        for value in {min(values), max(values)} if values else ():
            yield start if math.isnan(value) else ys.index(value, start)
        start = end


def log_files(home: Home, trial_id: int) -> dict[int, dict[int, str]]:
    """Return the paths of a trial's logs by the number of the run and by rank."""
    with home.reader() as store:
        runs = store.runs.list(trial_id)
    found = {
        run.number: {int(f.stem[5:]): str(f) for f in run.log_dir.glob("rank-*.log")}
        for run in runs
    }
    return {number: dict(sorted(ranks.items())) for number, ranks in found.items()}


def log(home: Home, trial_id: int, rank: int, offset: int, run: int | None, limit: int) -> LogPart:
    """Return a part of the log of a rank."""
    files = log_files(home, trial_id)
    number = run if run is not None else max(files, default=1)
    if rank not in files.get(number, ()):
        raise StoreError(
            f"run {number} of trial {trial_id} has no log of rank {rank}; log_files() has those"
            " there are"
        )
    return read_log(Path(files[number][rank]), offset, max(1, min(limit, _LONGEST_PART)))


# Checkpoints


def check_trusted(home: Home, trial_id: int) -> None:
    """Raise StoreError if the code of a trial's experiment may not run."""
    with home.reader() as store:
        check_trusted_experiment(store, store.trials.get(trial_id).experiment_id)


def checkpoint(home: Home, name: str) -> CheckpointRow:
    """Return the row of a checkpoint, by its uuid, the beginning of it, or a version of a model."""
    with home.reader() as store:
        return store.checkpoint(name)


def checkpoints(
    home: Home, experiment_id: int | None = None, trial_id: int | None = None
) -> list[CheckpointRow]:
    """Return the rows of the existing checkpoints of an experiment or of a trial."""
    with home.reader() as store:
        rows = store.checkpoints.list(experiment_id=experiment_id, trial_id=trial_id)
    return [row for row in rows if row.state is CheckpointState.COMPLETED]


def checkpoint_files(home: Home, uuid: str) -> dict[str, int]:
    """Return the files of a checkpoint and their sizes, after comparing them with its manifest."""
    storage = home.storage(checkpoint(home, uuid))
    with read_checkpoint(storage, uuid):
        return dict(storage.files(uuid))


def set_metadata(home: Home, experiment_id: int, uuid: str, metadata: dict[str, Any]) -> None:
    """Replace the metadata of a checkpoint of an experiment."""
    with home.writer() as store:
        _check_of(store, experiment_id, uuid)
        store.checkpoints.set_metadata(uuid, metadata)


def delete_checkpoint(home: Home, experiment_id: int, uuid: str) -> None:
    """Delete the files of a checkpoint of an experiment."""
    with home.writer() as store:
        _check_of(store, experiment_id, uuid)
        config = store.experiments.config(experiment_id, extensions_of(home.plugins))
        Deleter(store, experiment_id, config, home.plugins).delete(uuid)


def _check_of(store: Store, experiment_id: int, uuid: str) -> None:
    row = store.checkpoints.get(uuid)
    if row.uuid != uuid or store.trials.get(row.trial_id).experiment_id != experiment_id:
        raise StoreError(f"experiment {experiment_id} has no checkpoint {uuid}")


# Models


def models(home: Home, archived: bool | None) -> list[ModelRow]:
    """Return the models by name."""
    with home.reader() as store:
        return store.models.list(archived=archived)


def model(home: Home, name: str) -> ModelRow:
    """Return a model."""
    with home.reader() as store:
        return store.models.get(name)


def versions(home: Home, name: str) -> list[ModelVersionRow]:
    """Return the versions of a model, the newest first."""
    with home.reader() as store:
        return [*store.models.versions(name)]


def version(home: Home, name: str, version: int | str | None) -> ModelVersionRow:
    """Return a version by its number or an alias, by default the newest."""
    with home.reader() as store:
        return store.models.version(name, version)


def refer(home: Home, reference: str) -> ModelVersionRow:
    """Return the version that a reference names."""
    with home.reader() as store:
        return store.models.refer(reference)


def create_model(home: Home, name: str, given: ModelChanges) -> ModelRow:
    """Make a model."""
    with home.writer() as store:
        return store.models.create(name, **given)


def update_model(home: Home, name: str, changes: ModelChanges) -> ModelRow:
    """Change a model."""
    with home.writer() as store:
        return store.models.update(name, **changes)


def delete_model(home: Home, name: str) -> None:
    """Delete a model with its versions."""
    with home.writer() as store:
        store.models.delete(name)


def add_version(
    home: Home, name: str, uuid: str, aliases: list[str], given: VersionChanges
) -> ModelVersionRow:
    """Add a version to a model."""
    with home.writer() as store:
        return store.models.add_version(name, uuid, aliases=aliases, **given)


def update_version(home: Home, name: str, version: int, changes: VersionChanges) -> ModelVersionRow:
    """Change a version of a model."""
    with home.writer() as store:
        return store.models.update_version(name, version, **changes)


def delete_version(home: Home, name: str, version: int) -> None:
    """Delete a version of a model."""
    with home.writer() as store:
        store.models.delete_version(name, version)


def set_alias(home: Home, name: str, alias: str, version: int | str | None) -> ModelVersionRow:
    """Point an alias to a version."""
    with home.writer() as store:
        return store.models.set_alias(name, alias, version)


def remove_alias(home: Home, name: str, alias: str) -> None:
    """Remove an alias."""
    with home.writer() as store:
        store.models.remove_alias(name, alias)


# What a server executes


def _named(*functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {each.__name__: each for each in functions}


QUERIES = _named(
    *(experiment, experiments, summary, code_names, code_file, check_deletable),
    *(trial, trials, changed, measured, compared, reports, curve, log_files, log),
    *(checkpoint, checkpoints, checkpoint_files, check_trusted),
    *(models, model, versions, version, refer),
)
OF_EXPERIMENTS = _named(send, activate, describe, archive, delete, set_metadata, delete_checkpoint)
OF_TRIALS = _named(cancel_trial)
SHARED = _named(
    *(create_model, update_model, delete_model, add_version, update_version, delete_version),
    *(set_alias, remove_alias),
)


_CALLS = QUERIES | OF_EXPERIMENTS | OF_TRIALS | SHARED
_HINTS = {name: get_type_hints(each) for name, each in _CALLS.items()}
_arguments = {
    # Of all arguments but the home, in their order.
    name: msgspec.json.Decoder(GenericAlias(tuple, tuple(hints.values())[1:-1])).decode
    for name, hints in _HINTS.items()
}
_results = {name: msgspec.msgpack.Decoder(hints["return"]).decode for name, hints in _HINTS.items()}


def encode_arguments(
    function: Callable[..., Any], args: Sequence[Any], kw: Mapping[str, Any]
) -> str:
    """Return the arguments of a call as JSON, without the home."""
    given = signature(function).bind(None, *args, **kw)
    given.apply_defaults()
    return msgspec.json.encode([*given.args[1:]]).decode()


def decode_result(function: Callable[..., Any], data: bytes) -> Any:
    """Return the result of a call. Raises DecodeError for anything else."""
    return _results[function.__name__](data)


class Calls:
    """Executes calls of clients on other machines in a home, with the environment of drivers.

    `visible` are the experiments that exist for the user of a call, by default all. Arguments are
    JSON, and results are msgpack. Raises DetError for a call that does not exist, or that fails.
    """

    def __init__(self, home: Path, environ: Mapping[str, str]) -> None:
        self._path, self._environ = home, environ

    def query(self, name: str, arguments: bytes, visible: Visible | None = None) -> bytes:
        """Execute what changes nothing."""
        return self._call(QUERIES, name, arguments, visible=visible)

    def change_shared(self, name: str, arguments: bytes, visible: Visible | None = None) -> bytes:
        """Execute a change of what all editors share."""
        return self._call(SHARED, name, arguments, visible=visible)

    def change(
        self,
        name: str,
        arguments: bytes,
        *,
        experiment_id: int | None = None,
        trial_id: int | None = None,
    ) -> bytes:
        """Execute a change of this experiment or trial, and of no other."""
        if experiment_id is not None:
            return self._call(OF_EXPERIMENTS, name, arguments, experiment_id)
        return self._call(OF_TRIALS, name, arguments, trial_id)

    def _call(
        self,
        known: Mapping[str, Callable[..., Any]],
        name: str,
        arguments: bytes,
        id: int | None = None,
        visible: Visible | None = None,
    ) -> bytes:
        function = known.get(name)
        if function is None:
            raise DetError(f"a server does not execute {name!r} for a client")
        args: Any = _arguments[name](arguments)
        if id is not None and args[0] != id:
            raise DetError(f"{name} of {args[0]} is no change of {id}")
        try:
            return msgspec.msgpack.encode(function(Home(self._path, self._environ, visible), *args))
        except OverflowError as error:
            raise DetError(f"{name}: a number is too large") from error
