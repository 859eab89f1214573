"""Lightning's own Trainer behind core's loop."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from det_core import Adapter, Loop, Metrics, RunInfo, Stop, TrialError
from det_core.entrypoint import make_trial
from det_core.ranks import global_batch_size, of_all_ranks
from det_core.schedule import to_batches
from det_torch.backends import TorchBackend
from det_torch.copies import Copies
from det_torch.data import seed_everything
from det_torch.metrics import Numbers
from det_torch.ranks import Replicas, join_ranks

from . import settings, snapshot
from .ends import TrialConductor
from .fitting import make_trainer
from .pace import Fit, Pace
from .shares import of_shares
from .trial import LightningAdapter, LightningTrialContext, own


class TrainerAdapter(Adapter[LightningAdapter]):
    """Trains a `LightningAdapter`: one call of `Trainer.fit`, in which core's loop begins and is told of every batch.

    Asked outside of that for what only a fit can tell (a validation, the length of an epoch), it makes a fit that trains nothing.
    """

    framework_version = version("lightning")

    def __init__(self, trial: LightningAdapter, run: RunInfo, backend: TorchBackend | None = None) -> None:
        self.trial, self._run, self.build = trial, run, run.build
        self._numbers, self._copies = Numbers(), Copies()
        self._loop_pace = _LoopPace(self)
        self._backend = backend
        self._length: int | str | None = "unknown"
        self._batch_size: int | None = None
        self._open, self._last = ExitStack(), ExitStack()
        self._checkpoint = ""
        try:
            self._conductor = TrialConductor(
                self._loop_pace,
                run.distributed,
                seed=run.seed,
                build=lambda build, split: run.build.data_loader(trial.context, build, split),
                build_training=own(trial, "build_training_data_loader"),
                build_validation=own(trial, "build_validation_data_loader"),
                check=settings.check_callbacks,
                observe=run.observe,
            )
            self._open.callback(self._conductor.close)
            self._trainer = make_trainer(trial, run, self._conductor, backend, lambda: self.length or 0)
            self._conductor.attach(self._trainer)
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, trial: type[LightningAdapter], run: RunInfo) -> TrainerAdapter:
        with ExitStack() as stack:
            backend = join_ranks(run)
            if backend is not None:
                stack.callback(backend.shutdown)
            seed_everything(run.seed)
            adapter = cls(build_trial(trial, LightningTrialContext(run)), run, backend)
            adapter._last.push(stack.pop_all())
            return adapter

    # Training

    def run(self, start: Callable[[], Loop]) -> None:
        self._loop_pace.start = start
        try:
            self._fit()
        finally:
            self._loop_pace.start = None

    def train(self, loop: Loop) -> None:
        self.run(lambda: loop)

    def _fit(self) -> None:
        options: dict[str, Any] = {"ckpt_path": self._checkpoint, "weights_only": True} if self._checkpoint else {}
        self._trainer.fit(self.trial.lightning_module, datamodule=self.trial.datamodule, **options)

    def _briefly(self, do: Callable[[], Any]) -> Any:
        """Return what `do` returns within a fit: the one that goes on, or one that trains nothing."""
        if self._conductor.running:
            return do()
        self._loop_pace.instead = do
        try:
            self._fit()
        finally:
            self._loop_pace.instead = None
        return self._loop_pace.answer

    def finish(self) -> None:
        self._conductor.finish()

    # The ranks

    def synchronize(self) -> None:
        """Take over the chief's buffers, of the module and of what callbacks average of it."""
        if self._backend is not None:
            self._replicas(self._backend).align_buffers()

    def fingerprint(self) -> str:
        return self._replicas(self._backend).fingerprint() if self._backend is not None else ""

    def _replicas(self, backend: TorchBackend) -> Replicas:
        """Return the module, and copies of it that callbacks hold, as they are now: hooks may put others in their places."""
        module = self.trial.lightning_module
        held = [each for callback in self._trainer.callbacks for each in vars(callback).values()]  # type: ignore[attr-defined]
        copies = [each for each in held if isinstance(each, torch.nn.Module) and each is not module]
        there = [each for each in copies if all(b.device == module.device for b in each.buffers())]
        return Replicas(backend, [module, *there], [])

    # Metrics

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        return of_all_ranks(self._numbers(rows), self._run)

    def reported(self, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, float]]) -> Mapping[str, Any]:
        return {**metrics, **self._over_ranks(self._conductor.take_epoch_metrics())}

    def validate(self) -> Metrics:
        metrics: Metrics = self._briefly(self._measure)
        return metrics

    def _measure(self) -> dict[str, float]:
        found = self._conductor.validate()
        return self._over_ranks(found, self._conductor.shares)

    def _over_ranks(self, metrics: Metrics, shares: Mapping[str, tuple[str, float]] | None = None) -> dict[str, float]:
        """Return the mean over the ranks of each metric that is a number, or what their shares make of it together."""
        mine = self._numbers([metrics])[0]
        if self._run.distributed.size == 1:
            return mine
        ranks = self._run.distributed.allgather((mine, shares or {}))
        return of_shares(ranks)

    # State

    def save(self, path: Path) -> None:
        self._briefly(lambda: self._conductor.save(path))

    def snapshot(self) -> Callable[[Path], None]:
        checkpoint, contents = self._briefly(self._conductor.capture)
        if self._run.distributed.rank != 0:
            return lambda path: None
        return self._copies.writing(
            {"checkpoint": checkpoint, "contents": contents},
            lambda copied, path: snapshot.write(copied["checkpoint"], copied["contents"], path),
        )

    def load(self, path: Path) -> None:
        checkpoint, contents = snapshot.read(path)
        self._conductor.resume(checkpoint, contents, from_start=not self._run.first_batch)
        del checkpoint["loops"]  # the position is det's
        directory = self._open.enter_context(
            tempfile.TemporaryDirectory(prefix="det-lightning-", dir=self._run.scratch)
        )
        self._checkpoint = str(Path(directory) / snapshot.LIGHTNING_FILE)
        torch.save(checkpoint, self._checkpoint)
        self._length = "unknown"

    # Facts

    @property
    def length(self) -> int | None:
        """Batches that the trial is trained for; None where nobody knows."""
        length = self._run.length
        return None if length is None else to_batches(length.n, length.unit, self)

    @property
    def batches_per_epoch(self) -> int | None:
        self._learn()
        assert not isinstance(self._length, str)
        return self._length

    @property
    def global_batch_size(self) -> int | None:
        return global_batch_size(self._run, self._learned_batch_size)

    def _learned_batch_size(self) -> int | None:
        self._learn()
        return self._batch_size

    def _learn(self) -> None:
        """Ask the training data once for its length: a boundary asks for it, too."""
        if isinstance(self._length, str):
            conductor = self._conductor
            feed = conductor.feed if conductor.has_feed else self._briefly(lambda: conductor.feed)
            self._length, self._batch_size = feed.batches_per_epoch, feed.batch_size

    def close(self) -> None:
        with self._last, self._open:
            pass


class _LoopPace(Pace):
    """Lets core's loop decide between two batches; `instead` is done in place of training."""

    def __init__(self, adapter: TrainerAdapter) -> None:
        self._adapter = adapter
        self.start: Callable[[], Loop] | None = None
        self.instead: Callable[[], Any] | None = None
        self.answer: Any = None
        self._loop: Loop | None = None
        self._length: int | None = None

    def begin(self, fit: Fit) -> bool:
        if self.instead is not None:
            self.answer = self.instead()
            return True
        assert self.start is not None
        self._loop, self._length = None, self._adapter.length
        self._loop = self.start()
        return bool(self._loop.stop)

    def step(self, fit: Fit, row: dict[str, Any]) -> bool:
        assert self._loop is not None
        return bool(self._loop.step(row))

    def request_stop(self) -> None:
        if self._loop is not None:
            self._loop.request_stop()

    def is_last(self, done: int) -> bool:
        return self._length is not None and done >= self._length

    @property
    def leaves(self) -> bool:
        return self.instead is not None or (self._loop is not None and self._loop.stop is Stop.PREEMPTED)

    def synchronize(self) -> None:
        self._adapter.synchronize()

    def wrap(self, trainer: pl.Trainer) -> None:
        context, build = self._adapter.trial.context, self._adapter.build
        trainer.optimizers = [build.optimizer(context, partial(_same, each)) for each in trainer.optimizers]
        for config in trainer.lr_scheduler_configs:
            config.scheduler = build.lr_scheduler(context, partial(_same, config.scheduler))


def _same(built: Any) -> Any:
    return built


def build_trial(trial: type[LightningAdapter], context: LightningTrialContext, **arguments: Any) -> LightningAdapter:
    """Make a trial. Raises TrialError for a class whose constructor takes something else, or does not call ours."""
    made = make_trial(trial, LightningAdapter, context, **arguments)
    if not hasattr(made, "lightning_module"):
        raise TrialError(
            f"{trial.__name__}.__init__ does not call super().__init__(context, lightning_module=...); it must, with your module"
        )
    return made
