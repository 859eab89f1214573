"""Train again, find the differences and explain them: `det verify`, `det check --determinism`."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from det_core.config import ExperimentConfig, hparams_with_secrets, is_trial_entrypoint, to_json
from det_core.errors import DetError
from det_core.hooks import Plugins, extensions_of
from det_core.storage import Storage
from det_core.support.origin import THREADS, packages

from ..check import first_choice
from ..driver import (
    DriverSettings,
    environment_of,
    imports_of,
    interpreter_of,
    lengths_asked,
    read_event,
    recorded_threads,
    searcher_of,
)
from ..provenance import read
from ..store import (
    CheckpointState,
    Store,
    TrialRow,
    check_trusted,
    refuse_code,
    storage_of,
)
from ._compare import Difference, of_replays, of_reports, of_tensor
from ._script import ScriptRun
from ._spec import Replay, Seen, train

CAUSES = {
    "data": (
        "the order or the content of the data is not fixed: a shuffle or an augmentation draws from"
        " a generator that nothing seeds, or reads the time"
    ),
    "training": (
        "the same data gave other numbers: kernels that are not deterministic, or a draw, the time"
        " or a global in the model"
    ),
    "validation": (
        "training was the same and its validation was not: a draw, the time or a global in the"
        " evaluation"
    ),
    "weights": (
        "the numbers are the same and the weights are not: a step that no metric shows, or kernels"
        " that are not deterministic"
    ),
}
RESUMED = (
    "it trains the same from its beginning, and not from a checkpoint: "
    "there is state that a checkpoint does not carry, such as a global"
)
UNKNOWN = (
    "two trainings now agree, so something has changed since that is not recorded: data, hardware,"
    " or the code outside"
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification.

    - `reports` is the number of compared reports.
    - `checkpoints` are the positions of the compared checkpoints.
    - `causes` are the usual causes of such a difference.
    """

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
    """Train a trial again in `scratch` and compare. Nothing else is changed.

    Raises DetError if the trial cannot be trained again in this way.
    """
    row = store.experiments.get(experiment)
    config = store.experiments.config(experiment, extensions_of(plugins))
    chosen = _trial(store, experiment, trial)
    last = min(batches or chosen.batches, chosen.batches)
    copy = store.code_dir(experiment)
    mine = shutil.copytree(
        code or copy, scratch / "code", ignore=shutil.ignore_patterns("__pycache__")
    )
    storage = storage_of(store, experiment, config, plugins)
    against = _saved(store, chosen, last, storage, scratch / "recorded")
    begin = store.checkpoints.get(checkpoint) if checkpoint else None
    if begin is not None and (begin.trial_id != chosen.id or begin.batches >= last):
        raise DetError(
            f"checkpoint {begin.uuid} is not of trial {chosen.id} before batch {last}; see det"
            " checkpoint list"
        )
    source = begin.uuid if begin else chosen.source_checkpoint
    python = interpreter_of(store.experiment_dir(experiment), config, plugins, settings.root)
    of_class = is_trial_entrypoint(config.entrypoint)
    threads = recorded_threads(store.experiment_dir(experiment), settings, config)
    variables = environment_of(environ, config, gpus=bool(settings.gpus), threads=threads)
    first = Replay(
        entrypoint=str(config.entrypoint),
        config=to_json(config),
        hparams=hparams_with_secrets(chosen.hparams, config),
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

    script = (
        None
        if of_class
        else _script(store, config, plugins, chosen, last, variables, python, settings.gpus)
    )

    def run(name: str, **changed: Any) -> Seen:
        replay = msgspec.structs.replace(first, scratch=str(scratch / name), **changed)
        if replay.checkpoint:
            target = Path(replay.scratch) / "checkpoints" / replay.checkpoint
            own = scratch / "first" / "checkpoints" / replay.checkpoint
            (
                shutil.copytree(own, target)
                if own.is_dir()
                else storage.download(replay.checkpoint, target)
            )
        if script is not None:
            return script.train(replay)
        return train(replay, variables, python or sys.executable, settings.gpus)

    seen = run("first")
    recorded = [
        (m.group, m.batches, m.values) for m in store.metrics.read(trial_id=chosen.id, last=last)
    ]
    reports = [report for report in recorded if begin is None or report[1] > begin.batches]
    difference, count = of_reports(reports, seen.history, tolerance)
    difference = difference or of_tensor(seen.tensor)
    causes: list[str] = []
    saved = {
        str(at): str(scratch / "first" / "checkpoints" / uuid)
        for at, uuid in seen.checkpoints.items()
    }
    if difference is None:
        between = sorted(
            at for at in seen.checkpoints if 0 < at < last and (begin is None or at > begin.batches)
        )
        if between:
            first_of = {
                "checkpoint": seen.checkpoints[between[0]],
                "warm": False,
                "began": between[0],
            }
            resumed = run("resumed", **first_of, against=saved)
            if difference := of_replays(seen, resumed, tolerance, last):
                causes = [RESUMED]
    else:
        again = run("again", against=saved)
        if within := of_replays(seen, again, tolerance, last):
            difference, causes = within, [f"it is not reproducible at all: {CAUSES[within.what]}"]
        else:
            since = chosen.started or row.created
            # An environment made from a lock does not change.
            origin = {} if python else _origin(store, chosen)
            causes = changes(origin, seen, since, scratch, variables)
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


def check_determinism(
    config: ExperimentConfig,
    code: Path,
    plugins: Plugins,
    scratch: Path,
    environ: Mapping[str, str],
    batches: int = 8,
) -> tuple[Difference, str] | None:
    """Train `batches` batches twice, and once from a checkpoint in the middle.

    Returns the first difference and its cause, or None.
    """
    hparams, seed = first_choice(config, plugins, code)
    first = Replay(
        entrypoint=str(config.entrypoint),
        config=to_json(config),
        hparams=hparams,
        seed=seed,
        code=str(code),
        scratch=str(scratch / "once"),
        batches=batches,
        every=max(1, batches // 2),
    )
    variables = environment_of(environ, config, gpus=False)
    once = train(first, variables)
    saved = {
        str(at): str(scratch / "once" / "checkpoints" / uuid)
        for at, uuid in once.checkpoints.items()
    }

    def again(name: str, checkpoint: str | None) -> Seen:
        replay = msgspec.structs.replace(
            first,
            scratch=str(scratch / name),
            against=saved,
            checkpoint=checkpoint,
            warm=False if checkpoint else None,
        )
        if checkpoint:
            place = Path(replay.scratch) / "checkpoints"
            place.mkdir(parents=True)
            (scratch / "once" / "checkpoints" / checkpoint).rename(place / checkpoint)
            saved.pop(str(first.every))
        return train(replay, variables)

    if found := of_replays(once, again("twice", None), 0.0, batches):
        return found, CAUSES[found.what]
    if found := of_replays(once, again("resumed", once.checkpoints[first.every]), 0.0, batches):
        return found, RESUMED
    return None


def _saved(
    store: Store, trial: TrialRow, last: int, storage: Storage, into: Path
) -> dict[str, str]:
    """Fetch the checkpoints of a trial up to a position. Return their directories by position."""
    found = {}
    for each in store.checkpoints.list(experiment_id=trial.experiment_id):
        if (
            each.trial_id == trial.id
            and each.state is CheckpointState.COMPLETED
            and 0 < each.batches <= last
        ):
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
    """Return how to run a trial's script again.

    It runs to the lengths that its searcher asked for, or to the position that it reached.
    """
    code = store.code_dir(trial.experiment_id)
    id = trial.experiment_id
    events = [read_event(id, event) for event in store.journal.read(id)]
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
    """Return the environment of the trial's last run, or of the experiment's creation."""
    named = [run.origin for run in store.runs.list(trial.id) if run.origin]
    return (
        store.runs.origins(trial.experiment_id)[named[-1]]
        if named
        else read(store.experiment_dir(trial.experiment_id))
    )


def _trial(store: Store, experiment: int, wanted: int | None) -> TrialRow:
    """Return the trial to train again. Raises DetError if there is none that may be trained."""
    check_trusted(store, experiment)
    refuse_code(store, experiment)
    trials = store.trials.list(experiment)
    found = [each for each in trials if each.batches and wanted in (None, each.id)]
    if not found:
        which = "trial" if wanted is None else f"trial {wanted}"
        raise DetError(
            f"experiment {experiment} has no {which} that has trained; see det show {experiment}"
        )
    return found[0]


_MOST = 20
_OURS = ("/proc/", "/sys/", "/dev/", "/etc/")


def changes(
    recorded: Mapping[str, Any],
    seen: Seen,
    since: float | None,
    scratch: Path,
    threads: Mapping[str, str],
) -> list[str]:
    """Return the known changes, a sentence each.

    Changed files are found by their modification times, as their content was not recorded.
    """
    found = list(_packages(recorded.get("packages", {})))
    if recorded.get("python") and recorded["python"] != sys.version.split()[0]:
        found.append(f"Python was {recorded['python']} and is {sys.version.split()[0]}")
    for variable, key in THREADS.items():
        if recorded.get(key, threads[variable]) != threads[variable]:
            found.append(
                f"{variable} was {recorded[key]} and is {threads[variable]}; see resources.threads"
            )
    if since is not None:
        modules = {os.path.realpath(file) for file in seen.modules}
        found += [f"code has changed since: {file}" for file in _newer(modules, since, scratch)]
        opened = {os.path.realpath(file) for file in seen.opened} - modules
        data = (file for file in opened if not file.endswith((".py", ".pyc")))
        found += [
            f"a file that training reads has changed since: {file}"
            for file in _newer(set(data), since, scratch)
        ]
    return found[:_MOST]


def code_changes(before: Path, now: Path) -> list[str]:
    """Return the files that differ in two directories of code, each with its first such line."""
    found = []
    for file in sorted(
        p for p in before.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    ):
        name, other = file.relative_to(before), now / file.relative_to(before)
        if not other.is_file():
            found.append(f"{name} is gone")
        elif file.read_bytes() != other.read_bytes():
            old, new = (each.read_text(errors="replace").splitlines() for each in (file, other))
            blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
            line = next((start + 1 for tag, _, _, start, _ in blocks if tag != "equal"), 1)
            found.append(f"{name} differs from line {line} on")
    return found[:_MOST]


def _packages(before: Mapping[str, str]) -> Iterator[str]:
    now = packages() if before else {}
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield (
                f"{name} was {before.get(name, 'not installed')} and is"
                f" {now.get(name, 'not installed')}"
            )


def _newer(files: set[str], since: float, scratch: Path) -> Iterator[str]:
    installed = tuple(
        f"{os.path.realpath(path)}{os.sep}"
        for path in {*sysconfig.get_paths().values(), sys.prefix}
    )
    for file in sorted(files):
        if file.startswith((*_OURS, *installed, f"{os.path.realpath(scratch)}{os.sep}")):
            continue
        try:
            changed = os.stat(file).st_mtime
        except OSError:
            continue
        if changed > since and os.path.isfile(file):
            yield file
