"""One run of one trial: build, restore, train, save.

The same code runs in a worker process, where the host is a connection to the driver, and in the
user's own process (`Trainer.fit`, notebooks, `det check`), where the host is a plain object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import errors
from ..checkpoint import Manifest, read_checkpoint, read_json_object
from ..checkpoint.manifest import of_plain
from ..config import ExperimentConfig, Length
from ..errors import CheckpointError, DetError, InvalidHP
from ..storage import Selector, Storage
from .adapter import Adapter, Loop, RunInfo, Stop
from .host import TRAINING, TrialHost
from .loop import RUNNING, Progress, RunLoop
from .saving import PROGRESS_FILE, CheckpointSink, Saving
from .schedule import Every, Period, Schedule, to_batches

if TYPE_CHECKING:
    from ..hooks.records import Framework
    from ..ranks.backend import Communicator


def run_trial(
    framework: Framework,
    trial: type,
    info: RunInfo,
    host: TrialHost,
    keep: CheckpointSink,
    *,
    schedule: Callable[[Adapter[Any]], Schedule] | None = None,
    failed: Callable[[BaseException], None] = lambda error: None,
) -> Stop:
    """Train `trial` from its start or `info.checkpoint` to the host's target.

    Return why it stopped.

    `schedule` makes the schedule, by default that of `info.config`. What the trial raises passes
    through. `failed` is called with it first, before anything is closed, as other ranks then fail,
    too.
    """
    info = locate(info, keep.storage)
    adapter = framework.load().create(trial, info)
    try:
        progress = restore(adapter, framework, info, keep.storage) if info.checkpoint else None
        return train_from(progress, adapter, framework, info, host, keep, schedule=schedule)
    except BaseException as error:
        failed(error)
        raise
    finally:
        adapter.close()


def train_from(
    progress: Progress | None,
    adapter: Adapter[Any],
    framework: Framework,
    info: RunInfo,
    host: TrialHost,
    keep: CheckpointSink,
    *,
    schedule: Callable[[Adapter[Any]], Schedule] | None = None,
) -> Stop:
    """Train with a restored adapter from `progress` on, or from the beginning.

    The caller closes the adapter.
    """
    save = Saving(adapter, framework, info, host, keep)
    loops: list[RunLoop] = []

    def start() -> Loop:
        plan = schedule(adapter) if schedule else schedule_of(info.config, adapter)
        loop = RunLoop(
            adapter, plan, host, info.distributed, save, progress, info.length, save.writer
        )
        loops.append(loop)
        RUNNING.set(loop)
        if info.distributed.rank == 0:
            host.status(TRAINING)
        loop.begin()
        return loop

    try:
        adapter.run(start)
    except KeyboardInterrupt:
        # At once: do not wait for a checkpoint that is being written, and do not publish it.
        raise
    except BaseException as error:
        # The error that is raised must stay InvalidHP, even if saving fails.
        with suppress(Exception):
            if isinstance(error, InvalidHP) and loops:
                loops[0].save_after_error()
        save.writer.close()
        raise
    finally:
        RUNNING.set(None)
    if not (loops and loops[0].stop):
        raise RuntimeError(
            f"{type(adapter).__name__}.train returned before the loop stopped; train until step()"
            " is true"
        )
    return loops[0].stop


def locate(info: RunInfo, storage: Storage) -> RunInfo:
    """Return the run with its `first_batch`, the position of its checkpoint.

    The position is 0 if the checkpoint is another trial's (a warm start).
    """
    if info.checkpoint is None:
        return info
    with read_on_host(
        info.distributed, storage, info.checkpoint, lambda name: name == PROGRESS_FILE
    ) as (path, _):
        progress = _progress(path, info)
    return replace(info, first_batch=progress.batches if progress else 0)


def restore(
    adapter: Adapter[Any], framework: Framework, info: RunInfo, storage: Storage
) -> Progress | None:
    """Load the checkpoint `info.checkpoint`, and return the loop's progress.

    Returns None if the checkpoint is another trial's (a warm start).
    """
    assert info.checkpoint is not None
    with read_on_host(info.distributed, storage, info.checkpoint) as (path, manifest):
        if manifest.framework and manifest.framework != framework.name:
            raise CheckpointError(
                f"checkpoint {info.checkpoint} was written by the framework {manifest.framework!r},"
                f" but the trial is of {framework.name!r}; name a checkpoint of {framework.name!r}"
            )
        adapter.load(path)
        return _progress(path, info)


@contextmanager
def read_on_host(
    distributed: Communicator, storage: Storage, uuid: str, selector: Selector | None = None
) -> Iterator[tuple[Path, Manifest]]:
    """Give every rank of a host the directory and the manifest of a checkpoint.

    One rank fetches and verifies it. What that rank raises, all of them raise. Every rank must call
    it, and each waits at the end until all ranks of its host are done.
    """
    with ExitStack() as stack:
        result: Any = None
        if distributed.local_rank == 0:
            try:
                path, manifest = stack.enter_context(read_checkpoint(storage, uuid, selector))
                result = [str(path), msgspec.to_builtins(manifest)]
            except DetError as error:
                result = (type(error).__name__, str(error))
        result = distributed.allgather_local(result)[0]
        if isinstance(result, tuple):
            raise getattr(errors, result[0], DetError)(result[1])
        if distributed.local_rank:
            stack.enter_context(storage.reading(uuid))
        yield Path(result[0]), of_plain(result[1])
        distributed.allgather_local(None)


def _progress(path: Path, info: RunInfo) -> Progress | None:
    file = path / PROGRESS_FILE
    state = read_json_object(file) if file.exists() else {}
    written_by = state.pop("trial_id", None)
    own = (
        written_by == info.trial_id
        if info.warm is None
        else not info.warm and written_by is not None
    )
    if not own:
        return None
    try:
        return Progress(**state)
    except TypeError as error:
        raise CheckpointError(
            f"{file} is not what this version of det writes: {error}; resume with the version that"
            " wrote the checkpoint, or from another one"
        ) from error


def schedule_of(config: ExperimentConfig, adapter: Adapter[Any]) -> Schedule:
    """Return the schedule of an experiment's configuration."""
    return Schedule(
        report=Every(config.scheduling_unit),
        validate=_period(config.min_validation_period, adapter),
        checkpoint=_period(config.min_checkpoint_period, adapter),
        policy=config.checkpoint_policy,
        metric=config.searcher.metric if config.searcher else None,
        validate_first=config.perform_initial_validation,
    )


def length_of(config: ExperimentConfig) -> Length | None:
    """Return the length of the longest trials of a configuration, from their start, or None.

    It is None where `max_length` is not set. Trials of a population are copies that continue, each
    with its own length, and `max_time` counts in a metric.
    """
    length: Length | None = getattr(config.searcher, "max_length", None)
    return length


def _period(length: Length | None, adapter: Adapter[Any]) -> Period:
    return Every(to_batches(length.n, length.unit, adapter) if length and length.n else 0)
