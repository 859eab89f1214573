"""One run of one trial: build, restore, train, save.

The same code runs in a worker process, where the host is a connection to the driver, and in the user's own process
(`Trainer.fit`, notebooks, `det check`), where the host is a plain object.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .checkpoint import Manifest, read_checkpoint, write_checkpoint
from .context_dir import copy_code
from .errors import CheckpointError
from .host import HostLost, TrialHost
from .loop import Loop, Progress, Stop, to_batches
from .schedule import Every, Period, Schedule

if TYPE_CHECKING:
    from .adapter import Adapter, RunInfo
    from .config import ExperimentConfig, Length
    from .records import Framework
    from .storage import Storage

PROGRESS_FILE = "loop.json"
LOAD_FILE = "load_data.json"


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Where a run's checkpoints go: the storage, and what to do when the driver cannot be told of one."""

    storage: Storage
    unrecorded: Callable[[Manifest], None] = lambda manifest: None


def run_trial(
    framework: Framework,
    trial: type,
    info: RunInfo,
    host: TrialHost,
    keep: Keep,
    *,
    schedule: Callable[[Adapter[Any]], Schedule] | None = None,
) -> Stop:
    """Train `trial` from its beginning or from `info.checkpoint` until the host's target; return why it stopped.

    `schedule` makes the schedule, by default that of `info.config`. What the trial raises passes through.
    """
    adapter = framework.load().create(trial, info)
    try:
        return train(adapter, framework, info, host, keep, schedule=schedule)
    finally:
        adapter.close()


def train(
    adapter: Adapter[Any],
    framework: Framework,
    info: RunInfo,
    host: TrialHost,
    keep: Keep,
    *,
    schedule: Callable[[Adapter[Any]], Schedule] | None = None,
) -> Stop:
    """Restore and train with an adapter that exists; the caller closes it."""
    progress = restore(adapter, framework, info, keep.storage) if info.checkpoint else None
    save = _Save(adapter, framework, info, host, keep)
    plan = schedule(adapter) if schedule else schedule_of(info.config, adapter)
    loop = Loop(adapter, plan, host, info.distributed, save, progress)
    if not loop.begin():
        adapter.train(loop)
    if not loop.stop:
        raise RuntimeError(
            f"{type(adapter).__name__}.train returned before the loop stopped; train until step() is true"
        )
    return loop.stop


def restore(adapter: Adapter[Any], framework: Framework, info: RunInfo, storage: Storage) -> Progress | None:
    """Load the checkpoint `info.checkpoint`; return the loop's progress, or None when it is another trial's (a warm start)."""
    assert info.checkpoint is not None
    with read_checkpoint(storage, info.checkpoint) as (path, manifest):
        if manifest.framework and manifest.framework != framework.name:
            raise CheckpointError(
                f"checkpoint {info.checkpoint} was written by the framework {manifest.framework!r}, "
                f"but the trial is of {framework.name!r}; name a checkpoint of {framework.name!r}"
            )
        adapter.load(path)
        state = json.loads((path / PROGRESS_FILE).read_text()) if (path / PROGRESS_FILE).exists() else {}
    if state.pop("trial_id", None) != info.trial_id:
        return None
    return Progress(**state)


def schedule_of(config: ExperimentConfig, adapter: Adapter[Any]) -> Schedule:
    """Return the schedule that an experiment configuration asks for."""
    return Schedule(
        report=Every(config.scheduling_unit),
        validate=_period(config.min_validation_period, adapter),
        checkpoint=_period(config.min_checkpoint_period, adapter),
        policy=config.checkpoint_policy,
        metric=config.searcher.metric if config.searcher else None,
        validate_first=config.perform_initial_validation,
    )


def _period(length: Length | None, adapter: Adapter[Any]) -> Period:
    return Every(to_batches(length.n, length.unit, adapter) if length and length.n else 0)


class _Save:
    """Writes, publishes and records one checkpoint; every rank takes part, the chief writes."""

    def __init__(self, adapter: Adapter[Any], framework: Framework, info: RunInfo, host: TrialHost, keep: Keep) -> None:
        self._adapter, self._framework, self._info, self._host, self._keep = adapter, framework, info, host, keep

    def __call__(self, progress: Progress) -> bool:
        recorded = True
        uuid = self._info.distributed.broadcast(str(uuid4()))
        if self._info.distributed.rank == 0:
            manifest = write_checkpoint(
                self._keep.storage,
                lambda path: self._write(path, progress),
                uuid=uuid,
                framework=self._framework.name,
                framework_version=self._adapter.framework_version,
                batches=progress.batches,
                experiment_id=self._info.experiment_id,
                trial_id=self._info.trial_id,
            )
            try:
                self._host.checkpointed(manifest, self._keep.storage.url(uuid))
            except HostLost:
                recorded = False
                self._keep.unrecorded(manifest)
        else:
            scratch = Path(tempfile.mkdtemp(prefix="det-scratch-"))
            try:
                self._adapter.save(scratch)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        self._adapter.saved(uuid)
        return recorded

    def _write(self, path: Path, progress: Progress) -> None:
        self._adapter.save(path)
        state = asdict(progress) | {"trial_id": self._info.trial_id}
        (path / PROGRESS_FILE).write_text(json.dumps(state))
        (path / LOAD_FILE).write_text(json.dumps(self._load_data(), indent=1))
        if self._info.code_dir is not None:
            copy_code(self._info.code_dir, path / "code")

    def _load_data(self) -> dict[str, Any]:
        """What is needed to build the trial again without det's store."""
        from .config import to_json

        trial = type(self._adapter.trial)
        return {
            "trial_type": self._framework.trial.partition(":")[2],
            "framework": self._framework.name,
            "trial_cls_spec": f"{trial.__module__}:{trial.__qualname__}",
            "hparams": dict(self._info.hparams),
            "experiment_config": json.loads(to_json(self._info.config)),
        }
