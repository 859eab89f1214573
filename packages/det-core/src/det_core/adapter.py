"""What a framework's plugin implements, and what it may know of the run that it serves."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .backend import BackendRecord
from .metrics import number

if TYPE_CHECKING:
    from .backend import Communicator
    from .config import ExperimentConfig, Length

Metrics = Mapping[str, Any]
B = TypeVar("B")
T = TypeVar("T")


class Build:
    """The build hooks of one framework: each lets plugins place, wrap or replace what `build()` returns.

    `call(part, **arguments)` calls the hook of a part.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def model(self, context: Any, build: Callable[[], Any]) -> Any:
        return self._call("model", context=context, build=build)

    def optimizer(self, context: Any, build: Callable[[], Any]) -> Any:
        return self._call("optimizer", context=context, build=build)

    def lr_scheduler(self, context: Any, build: Callable[[], Any]) -> Any:
        return self._call("lr_scheduler", context=context, build=build)

    def data_loader(self, context: Any, build: Callable[[], Any], split: str) -> Any:
        return self._call("data_loader", context=context, build=build, split=split)


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """One run of one trial, as a framework's plugin sees it.

    `hparams` are plain values. `experiment_id` is None outside an experiment. `tensorboard_dir` is where event files of the
    trial belong. `code_dir` holds the user's code. `checkpoint` is the uuid restored from, if any, `first_batch` its
    position; `warm` says whether it is another trial's, from which this one begins at 0, and None that the checkpoint knows.
    `length` is what the trial is trained for if nothing ends it earlier, from its start: what a framework may make a
    schedule from; None where only the trial knows. `slots` counts the processes of the run. `quick` asks for one batch of
    everything (a check). `environment` is the digest of the environment that was made for it, `commit` that of its code.
    `observe` is called with the number of each batch, from 0, and the batch, where somebody asks in which order data comes;
    give batches through `observed`.

    Where there are several processes, `distributed` carries Python objects between them, and `backend` is the chosen way to
    reduce gradients: `backend.load().join(distributed)`. It is None for a single process.
    """

    config: ExperimentConfig
    hparams: Mapping[str, Any]
    seed: int
    build: Build
    distributed: Communicator
    trial_id: int = 0
    experiment_id: int | None = None
    run_number: int = 1
    length: Length | None = None
    slots: int = 1
    code_dir: Path | None = None
    tensorboard_dir: Path | None = None
    checkpoint: str | None = None
    first_batch: int = 0
    warm: bool | None = None
    quick: bool = False
    backend: BackendRecord | None = None
    scratch_dir: Path | None = None
    environment: str | None = None
    commit: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    observe: Callable[[int, Any], None] | None = None

    @property
    def scratch(self) -> Path | None:
        """A directory, made when it is asked for, of which nothing is left when the run has ended, also where it was killed.

        None outside of an experiment.
        """
        if self.scratch_dir is not None:
            self.scratch_dir.mkdir(parents=True, exist_ok=True)
        return self.scratch_dir

    def observed(self, batches: Iterator[B], first: int) -> Iterator[B]:
        """Return training batches, which begin with that number, as they are, or through `observe` where that is asked for."""
        return batches if self.observe is None else self._seen(self.observe, batches, first)

    @staticmethod
    def _seen(observe: Callable[[int, Any], None], batches: Iterator[B], first: int) -> Iterator[B]:
        for index, batch in enumerate(batches, first):
            observe(index, batch)
            yield batch


class Stop(enum.Enum):
    """Why the loop asks the framework to stop; falsy while training goes on."""

    NO = ""
    COMPLETED = "completed"
    PREEMPTED = "preempted"
    USER_STOPPED = "stopped by the trial"

    def __bool__(self) -> bool:
        return self is not Stop.NO


class Loop(ABC):
    """The schedule of a run, as an adapter sees it: it counts batches and, between them, does whatever has fallen due."""

    @property
    @abstractmethod
    def done(self) -> int:
        """Batches trained before this run began: how far the data must be skipped."""

    @property
    @abstractmethod
    def remaining(self) -> int:
        """Batches until something falls due: how many may be trained in one go; 0 when training must stop."""

    @property
    @abstractmethod
    def length(self) -> int | None:
        """The batches that the trial is trained for if nothing ends it earlier, from its start; None where nobody knows."""

    @property
    @abstractmethod
    def stop(self) -> Stop:
        """Why the loop stopped, or `Stop.NO`."""

    @abstractmethod
    def step(self, metrics: Metrics, batches: int = 1) -> Stop:
        """Record trained batches; truthy when the framework must stop.

        Call it after every batch, or after every chunk of at most `remaining` batches, whose means are `metrics`. Values
        may stay on the device; they become numbers at the next boundary. Raises LoopError after a stop, and for a chunk
        that passes a boundary.
        """

    @abstractmethod
    def request_stop(self) -> None:
        """End the trial, as complete, after the batch that is being trained; on any rank, for all."""

    def batches(self, source: Iterable[B]) -> Iterator[B]:
        """Yield batches of `source` until told to stop, for adapters that own their loop."""
        going_on = Stop.NO  # compared with what it is: its truth is a call, for each batch
        if self.stop is going_on:
            for batch in source:
                yield batch
                if self.stop is not going_on:
                    return


class Adapter(ABC, Generic[T]):
    """How one framework trains, validates, saves and loads. Never when, where to, or how often.

    Core calls `create` once, `load` when there is a checkpoint, `run`, which calls `train`, once, and `close` at the end,
    always. `train` calls `Loop.step`, which calls `validate` and `save` back.
    """

    framework_version: str = ""
    trial: T

    @classmethod
    @abstractmethod
    def create(cls, trial: type[T], run: RunInfo) -> Adapter[T]:
        """Seed the framework, choose the device and build the trial."""

    def run(self, start: Callable[[], Loop]) -> None:
        """Call `start`, which begins the loop, and train unless it has stopped by then.

        Beginning may validate and save. Override it where one call of the framework's sets up, trains and tears down, so
        that both happen inside; lengths need `batches_per_epoch` by the time that `start` is called.
        """
        loop = start()
        if not loop.stop:
            self.train(loop)

    @abstractmethod
    def train(self, loop: Loop) -> None:
        """Train until `loop.step` is true; the data starts behind `loop.done` batches."""

    @abstractmethod
    def validate(self) -> Metrics:
        """Return the metrics of the whole validation set, reduced over the ranks; change no weight and no RNG."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write all that an exact resume needs into the directory `path`.

        Every rank is called, as reductions may be needed; only the chief's directory is kept, unless the adapter is `sharded`.
        """

    def snapshot(self) -> Callable[[Path], None] | None:
        """Copy the state of this moment, and return what writes the copy as `save` would have written the state.

        Every rank is called, with what it takes of reductions; the chief's is called once, in a thread beside training, and
        must hold the GIL as little as it can. It is done with before the next snapshot, which may use its memory again. None,
        on every rank or on none, where the state can only be saved at once.
        """
        return None

    @abstractmethod
    def load(self, path: Path) -> None:
        """Restore what `save` wrote."""

    @property
    def sharded(self) -> bool:
        """Whether each rank saves a part of the state: what all of them write is then one checkpoint, with names of their own."""
        return False

    @property
    def batches_per_epoch(self) -> int | None:
        """Training batches in an epoch on each rank, or None where the data has no length."""
        return None

    @property
    def global_batch_size(self) -> int | None:
        """Records in a batch over all ranks, or None where that is unknown; converts lengths in records."""
        return None

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        """Turn the metrics of batches into plain numbers, reduced over the ranks; called at boundaries only."""
        return [{name: number(name, value) for name, value in row.items()} for row in rows]

    def reported(self, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, float]]) -> Mapping[str, Any]:
        """Take notice of a training report, on every rank, and return it, completed by metrics of the adapter's own."""
        return metrics

    def finish(self) -> None:
        """Do what the framework does at the end of training, on every rank: averaged weights, best weights, callbacks.

        Called once, behind the last batch of a trial that is over for good, and before its last validation and its last
        checkpoint; never for a run that is preempted, which saves the state as training left it.
        """

    def synchronize(self) -> None:
        """Make equal, on every rank, what no reduction of gradients keeps equal, such as running statistics.

        Called by every rank before each validation and each save, so that what is reported is what is saved. Not called in a
        run of one process.
        """

    def fingerprint(self) -> str:
        """Return a checksum of the weights, which must be the same on every rank; empty where there is none to compare."""
        return ""

    def saved(self, uuid: str) -> None:
        """Take notice, on every rank, that the checkpoint `uuid` is published."""

    def close(self) -> None:
        """Release threads, processes and files; called on every way out."""
