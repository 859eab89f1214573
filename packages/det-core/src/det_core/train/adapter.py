"""What a framework's plugin implements, and what it can learn about the run that it serves."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..ranks.backend import BackendRecord
from .metrics import number

if TYPE_CHECKING:
    from ..config import ExperimentConfig, Length
    from ..ranks.backend import Communicator

Metrics = Mapping[str, Any]
B = TypeVar("B")
T = TypeVar("T")


class Build:
    """Calls the build hooks of one framework.

    Each hook lets plugins place, wrap or replace what `build()` returns. `call(part, **arguments)`
    calls the hook of a part.
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

    - `hparams`: plain values.
    - `experiment_id`: None outside an experiment.
    - `tensorboard_dir`: the directory for the trial's event files.
    - `code_dir`: the directory of the user's code.
    - `checkpoint`: the uuid of the checkpoint to restore, if there is one. `first_batch` is its
      position.
    - `warm`: whether the checkpoint is another trial's, so that this trial begins at 0 (a warm
      start). None means that the checkpoint itself says it.
    - `length`: how long the trial trains from its start, if nothing ends it earlier. A framework
      can derive a learning rate schedule from it. None where only the trial knows.
    - `slots`: the number of processes of the run.
    - `quick`: whether to do one batch of everything (a check).
    - `environment`: the digest of the environment that was made for the run.
    - `commit`: the commit of the code.
    - `observe`: called with the number of each batch, from 0, and the batch, where the order of the
      data is recorded. An adapter passes its batches through `observed` for this.
    - `distributed`: carries Python objects between the processes of the run.
    - `backend`: the chosen way to reduce gradients: `backend.load().join(distributed)`. None for a
      single process.
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
        """A directory that is made on first use and removed when the run ends or is killed.

        None outside of an experiment.
        """
        if self.scratch_dir is not None:
            self.scratch_dir.mkdir(parents=True, exist_ok=True)
        return self.scratch_dir

    def observed(self, batches: Iterator[B], first: int) -> Iterator[B]:
        """Return an iterator over training batches that passes each to `observe`, if it is set.

        `first` is the number of the first batch.
        """
        return batches if self.observe is None else self._seen(self.observe, batches, first)

    @staticmethod
    def _seen(observe: Callable[[int, Any], None], batches: Iterator[B], first: int) -> Iterator[B]:
        for index, batch in enumerate(batches, first):
            observe(index, batch)
            yield batch


class Stop(enum.Enum):
    """Why the loop asks the framework to stop. `NO` is falsy: training continues."""

    NO = ""
    COMPLETED = "completed"
    PREEMPTED = "preempted"
    USER_STOPPED = "stopped by the trial"

    def __bool__(self) -> bool:
        return self is not Stop.NO


class Loop(ABC):
    """The training loop as an adapter sees it.

    It counts batches and does what is due between them.
    """

    @property
    @abstractmethod
    def done(self) -> int:
        """Batches trained before this run began. The data must be skipped this far."""

    @property
    @abstractmethod
    def remaining(self) -> int:
        """Batches until the next boundary.

        This many may be trained at once. 0 when training must stop.
        """

    @property
    @abstractmethod
    def length(self) -> int | None:
        """Batches that the trial trains from its start, if nothing ends it earlier.

        None if unknown.
        """

    @property
    @abstractmethod
    def stop(self) -> Stop:
        """Why the loop stopped, or `Stop.NO`."""

    @property
    @abstractmethod
    def owes_validation(self) -> bool:
        """Whether a validation is due here and not done, because a preempted run left it."""

    @abstractmethod
    def step(self, metrics: Metrics, batches: int = 1) -> Stop:
        """Record trained batches. The result is truthy when the framework must stop.

        Call it after every batch, or after every chunk of at most `remaining` batches with the
        means of their metrics. Values may stay on the device. They become numbers at the next
        boundary. Raises LoopError after a stop, and for a chunk that passes a boundary.
        """

    @abstractmethod
    def request_stop(self) -> None:
        """End the trial, as complete, after the current batch. One rank's call ends it for all."""

    @abstractmethod
    def conclude(self) -> Stop:
        """Stop at once if an end was requested while no batch is being trained.

        Every rank calls it.
        """

    def batches(self, source: Iterable[B]) -> Iterator[B]:
        """Yield batches of `source` until the loop stops, for adapters that own their loop."""
        # Compared by identity, as a truth test would be a method call for each batch.
        going_on = Stop.NO
        if self.stop is going_on:
            for batch in source:
                yield batch
                if self.stop is not going_on:
                    return


class Adapter(ABC, Generic[T]):
    """How one framework trains, validates, saves and loads.

    It does not decide when, where or how often.

    Core calls `create` once, `load` when there is a checkpoint, then `run` once, which calls
    `train`. It always calls `close` at the end. `train` calls `Loop.step`, which calls `validate`
    and `save`.
    """

    framework_version: str = ""
    trial: T

    @classmethod
    @abstractmethod
    def create(cls, trial: type[T], run: RunInfo) -> Adapter[T]:
        """Seed the framework, choose the device and build the trial."""

    def run(self, start: Callable[[], Loop]) -> None:
        """Call `start`, which begins the loop, and train unless the loop has stopped by then.

        Beginning the loop may validate and save. Override this method where one call of the
        framework sets up, trains and tears down, so that both happen inside that call. Lengths in
        epochs need `batches_per_epoch` when `start` is called.
        """
        loop = start()
        if not loop.stop:
            self.train(loop)

    @abstractmethod
    def train(self, loop: Loop) -> None:
        """Train until `loop.step` is true. The data starts after `loop.done` batches."""

    @abstractmethod
    def validate(self) -> Metrics:
        """Return the metrics of the whole validation set, reduced over the ranks.

        Changes no weight and no RNG.
        """

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write all that an exact resume needs into the directory `path`.

        Called on every rank, as reductions may be needed. Only the chief's directory is kept,
        unless the adapter is `sharded`.
        """

    def snapshot(self) -> Callable[[Path], None] | None:
        """Copy the current state, and return a function that writes the copy as `save` would.

        Called on every rank, so it may reduce over the ranks. Only the chief's function is called,
        once, in a thread while training continues. It must hold the GIL as little as it can. It has
        ended before the next snapshot, which may use the same memory. Returns None, on every rank
        or on none, where the state can only be saved by `save`.
        """
        return None

    @abstractmethod
    def load(self, path: Path) -> None:
        """Restore what `save` wrote."""

    @property
    def sharded(self) -> bool:
        """Whether each rank saves a part of the state under its own file names.

        Together they are one checkpoint.
        """
        return False

    @property
    def batches_per_epoch(self) -> int | None:
        """Training batches in an epoch on each rank, or None where the data has no length."""
        return None

    @property
    def global_batch_size(self) -> int | None:
        """Records in a batch over all ranks, or None if unknown.

        Converts lengths given in records.
        """
        return None

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        """Turn the metrics of batches into plain numbers, reduced over the ranks.

        Called at boundaries only.
        """
        return [{name: number(name, value) for name, value in row.items()} for row in rows]

    def reported(
        self, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, float]]
    ) -> Mapping[str, Any]:
        """Return a training report with the adapter's own metrics added. Called on every rank."""
        return metrics

    def finish(self) -> None:
        """Do the framework's work at the end of training: averaged or best weights, callbacks.

        Called once on every rank, after the last batch of a trial that has ended and before its
        last validation and its last checkpoint. Not called for a run that is preempted, which saves
        the state as training left it.
        """

    def synchronize(self) -> None:
        """Make equal, on every rank, what gradient reduction does not, such as running statistics.

        Called by every rank before each validation and each save, so that what is reported is what
        is saved. Not called in a run of one process.
        """

    def fingerprint(self) -> str:
        """Return a checksum of the weights, which must be equal on all ranks.

        Empty if there is none.
        """
        return ""

    def live_state(self) -> Mapping[str, str]:
        """Return checksums, by name, of all that the trial holds and training may change.

        They include what is not saved. The check before training compares a trial that has trained
        with one that is restored. Empty where this is not known.

        An empty checksum means None or an empty container. After a validation, leave out values
        that the next validation resets.
        """
        return {}

    def written(self, path: Path) -> None:
        """Called on the chief when `save` has written `path`, before it is published.

        Hooks that read the directory or add files are called here. The checkpoint is published even
        if they raise, and then the error ends the run. It is not called after `snapshot`.
        """

    def saved(self, uuid: str) -> None:
        """Called on every rank when the checkpoint `uuid` is published."""

    def close(self) -> None:
        """Release threads, processes and files. Called however the run ends."""
