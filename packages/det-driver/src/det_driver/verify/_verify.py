"""Training a trial of an experiment again, and saying what differs, and why."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from det_core.config import ExperimentConfig, from_json, is_trial_entrypoint
from det_core.errors import DetError
from det_core.plugins import Plugins, extensions_of
from det_core.storage import Storage

from ..driver import (
    DriverSettings,
    decode_event,
    environment_of,
    imports_of,
    interpreter_of,
    lengths_asked,
    searcher_of,
    threads_of,
)
from ..provenance import read
from ..store import CheckpointState, Store, TrialRow
from ._changes import changes, code_changes
from ._compare import Difference, of_replays, of_reports, of_tensor
from ._script import ScriptRun
from ._spec import Replay, Seen, train

CAUSES = {
    "data": "the order or the content of the data is not fixed: a shuffle or an augmentation draws from a generator that "
    "nothing seeds, or reads the time",
    "training": "the same data gave other numbers: kernels that are not deterministic, or a draw, the time or a global in "
    "the model",
    "validation": "training was the same and its validation was not: a draw, the time or a global in the evaluation",
    "weights": "the numbers are the same and the weights are not: a step that no metric shows, or kernels that are not "
    "deterministic",
}
RESUMED = (
    "it trains the same from its beginning, and not from a checkpoint: "
    "there is state that a checkpoint does not carry, such as a global"
)
UNKNOWN = (
    "two trainings now agree, so something has changed since that is not recorded: data, hardware, or the code outside"
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: `reports` and `checkpoints` were compared; `causes` say what usually makes such a difference."""

    experiment: int
    trial: int
    batches: int
    same: bool
    reports: int = 0
    checkpoints: tuple[int, ...] = ()
    difference: Difference | None = None
    causes: tuple[str, ...] = ()


def verify(
    store: Store,
    settings: DriverSettings,
    plugins: Plugins,
    environ: Mapping[str, str],
    scratch: Path,
    experiment: int,
    *,
    trial: int | None = None,
    batches: int | None = None,
    checkpoint: str | None = None,
    code: Path | None = None,
    tolerance: float = 0.0,
) -> Verdict:
    """Train a trial again below `scratch`, touching nothing else, and compare; DetError for what cannot be trained again so."""
    row = store.experiments.get(experiment)
    config = from_json(row.config, extensions=extensions_of(plugins))
    chosen = _trial(store, experiment, trial)
    last = min(batches or chosen.batches, chosen.batches)
    copy = store.code_dir(experiment)
    mine = shutil.copytree(code or copy, scratch / "code", ignore=shutil.ignore_patterns("__pycache__"))
    storage = plugins.storage_of(config, store.home / "checkpoints")
    against = _saved(store, chosen, last, storage, scratch / "recorded")
    begin = store.checkpoints.get(checkpoint) if checkpoint else None
    if begin is not None and (begin.trial_id != chosen.id or begin.batches >= last):
        raise DetError(
            f"checkpoint {begin.uuid} is not of trial {chosen.id} before batch {last}; see det checkpoint list"
        )
    source = begin.uuid if begin else chosen.source_checkpoint
    python = interpreter_of(store.experiment_dir(experiment), config, plugins, settings.root)
    of_class = is_trial_entrypoint(config.entrypoint)
    threads = threads_of(settings, config, of_class)
    variables = environment_of(environ, config, gpus=bool(settings.gpus), threads=threads)
    first = Replay(
        entrypoint=str(config.entrypoint),
        config=row.config,
        hparams=chosen.hparams,
        seed=chosen.seed,
        code=str(mine),
        scratch=str(scratch / "first"),
        batches=last,
        trial_id=chosen.id,
        experiment_id=experiment,
        checkpoint=source,
        warm=None if source is None else begin is None,
        began=begin.batches if begin else 0,
        against=against,
        tolerance=tolerance,
        ranks=max(1, config.resources.slots_per_trial),
    )

    script = None if of_class else _script(store, config, plugins, chosen, last, variables, python, settings.gpus)

    def run(name: str, **changed: Any) -> Seen:
        replay = msgspec.structs.replace(first, scratch=str(scratch / name), **changed)
        if replay.checkpoint:
            target = Path(replay.scratch) / "checkpoints" / replay.checkpoint
            own = scratch / "first" / "checkpoints" / replay.checkpoint
            shutil.copytree(own, target) if own.is_dir() else storage.download(replay.checkpoint, target)
        if script is not None:
            return script.train(replay)
        return train(replay, variables, python or sys.executable, settings.gpus)

    seen = run("first")
    told = [(m.group, m.batches, m.values) for m in store.metrics.read(trial_id=chosen.id, last=last)]
    reports = [report for report in told if begin is None or report[1] > begin.batches]
    difference, count = of_reports(reports, seen.history, tolerance)
    difference = difference or of_tensor(seen.tensor)
    causes: list[str] = []
    saved = {str(at): str(scratch / "first" / "checkpoints" / uuid) for at, uuid in seen.checkpoints.items()}
    if difference is None:
        between = sorted(at for at in seen.checkpoints if 0 < at < last and (begin is None or at > begin.batches))
        if between:
            first_of = {"checkpoint": seen.checkpoints[between[0]], "warm": False, "began": between[0]}
            resumed = run("resumed", **first_of, against=saved)
            if difference := of_replays(seen, resumed, tolerance, last):
                causes = [RESUMED]
    else:
        again = run("again", against=saved)
        if within := of_replays(seen, again, tolerance, last):
            difference, causes = within, [f"it is not reproducible at all: {CAUSES[within.what]}"]
        else:
            since = chosen.started or row.created
            origin = {} if python else _origin(store, chosen)  # a lock changes no more
            causes = changes(origin, seen, since, scratch)
            causes += code_changes(copy, code) if code is not None else []
            causes = causes or [UNKNOWN]
    return Verdict(
        experiment=experiment,
        trial=chosen.id,
        batches=last,
        same=difference is None,
        reports=count,
        checkpoints=tuple(seen.compared),
        difference=difference,
        causes=tuple(causes),
    )


def _saved(store: Store, trial: TrialRow, last: int, storage: Storage, into: Path) -> dict[str, str]:
    """Fetch the checkpoints of a trial up to a position; return their directories by position."""
    found = {}
    for each in store.checkpoints.list(experiment_id=trial.experiment_id):
        if each.trial_id == trial.id and each.state is CheckpointState.COMPLETED and 0 < each.batches <= last:
            storage.download(each.uuid, into / each.uuid)
            found[str(each.batches)] = str(into / each.uuid)
    return found


def _script(
    store: Store,
    config: ExperimentConfig,
    plugins: Plugins,
    trial: TrialRow,
    last: int,
    environ: Mapping[str, str],
    python: str | None,
    gpus: Sequence[str],
) -> ScriptRun:
    """Return how a trial's script is run again: to the lengths that its searcher asked for, or to where it came."""
    code = store.code_dir(trial.experiment_id)
    events = [decode_event(event.data) for event in store.journal.read(trial.experiment_id)]
    searcher = searcher_of(config, plugins, code)
    lengths = lengths_asked(searcher, events, trial.request)
    left_off = bool(lengths) and lengths[-1].at is None and lengths[-1].until is not None
    return ScriptRun(
        config=config,
        lengths=lengths,
        environ=environ,
        python=python or sys.executable,
        gpus=gpus,
        frameworks=plugins.frameworks_imported(imports_of(config, code)),
        cut=left_off or last < trial.batches,
    )


def _origin(store: Store, trial: TrialRow) -> Mapping[str, Any]:
    """Return what the trial's last run ran in, or what the experiment was made in."""
    named = [run.origin for run in store.runs.list(trial.id) if run.origin]
    return (
        store.runs.origins(trial.experiment_id)[named[-1]] if named else read(store.experiment_dir(trial.experiment_id))
    )


def _trial(store: Store, experiment: int, wanted: int | None) -> TrialRow:
    trials = store.trials.list(experiment)
    found = [each for each in trials if each.batches and wanted in (None, each.id)]
    if not found:
        which = "trial" if wanted is None else f"trial {wanted}"
        raise DetError(f"experiment {experiment} has no {which} that has trained; see det show {experiment}")
    return found[0]
