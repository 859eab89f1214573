"""The adapter that trains with Lightning's own Trainer under det-core's training loop."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from det_core import Adapter, Loop, Metrics, RunInfo, Stop, TrialError
from det_core.train.entrypoint import make_trial
from det_core.train.ranks import global_batch_size, of_all_ranks
from det_core.train.schedule import to_batches
from det_torch.backends import TorchBackend
from det_torch.copies import Copies
from det_torch.data import seed_everything
from det_torch.device import choose_device
from det_torch.live import fingerprint
from det_torch.metrics import Numbers
from det_torch.ranks import Replicas, join_ranks

from . import buffers, settings, snapshot
from .ends import FitLoop, TrialConductor
from .loop_controller import Fit, LoopController
from .ranks import arguments, divides, must_divide
from .trial import LightningAdapter, LightningTrialContext, own

_DEFAULTS: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class TrainerAdapter(Adapter[LightningAdapter]):
    """Trains a `LightningAdapter` with one call of `Trainer.fit`.

    det-core's training loop runs inside this call, between two batches.

    The adapter validates, and learns the length of an epoch, only during a fit. If det-core
    requests one of them at another time, it starts a fit that trains nothing.
    """

    framework_version = version("lightning")

    def __init__(
        self, trial: LightningAdapter, run: RunInfo, backend: TorchBackend | None = None
    ) -> None:
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
            self._trainer = make_trainer(
                trial, run, self._conductor, backend, lambda: self.length or 0
            )
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
        options: dict[str, Any] = (
            {"ckpt_path": self._checkpoint, "weights_only": True} if self._checkpoint else {}
        )
        self._trainer.fit(self.trial.lightning_module, datamodule=self.trial.datamodule, **options)

    def _briefly(self, do: Callable[[], Any]) -> Any:
        """Return what `do` returns within a fit: the current one, or one that trains nothing."""
        if self._conductor.running:
            return do()
        self._loop_pace.instead = do
        try:
            self._fit()
        finally:
            self._loop_pace.instead = None
        return self._loop_pace.result

    def finish(self) -> None:
        self._conductor.finish()

    # The ranks

    def chiefs_buffers(self) -> AbstractContextManager[None]:
        """Return a context in which this rank has the chief's buffers: those of the module, and of
        copies of it that callbacks average.

        They stay the chief's if the next forward pass makes them so. Otherwise the rank goes on
        with its own.
        """
        if self._backend is None:
            return nullcontext()
        replicas = self._replicas(self._backend)
        if buffers.are_broadcast(self._trainer):
            replicas.align_buffers()
            return nullcontext()
        return replicas.chiefs_buffers()

    def fingerprint(self) -> str:
        if self._backend is None:
            return fingerprint([self.trial.lightning_module])
        return self._replicas(self._backend).fingerprint()

    def _replicas(self, backend: TorchBackend) -> Replicas:
        """Return the current module and the copies of it that callbacks hold.

        Hooks may replace them.
        """
        module = self.trial.lightning_module
        held = [each for callback in self._trainer.callbacks for each in vars(callback).values()]  # type: ignore[attr-defined]
        copies = [each for each in held if isinstance(each, torch.nn.Module) and each is not module]
        there = [each for each in copies if all(b.device == module.device for b in each.buffers())]
        return Replicas(backend, [module, *there], [])

    # Metrics

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        return of_all_ranks(self._numbers(rows), self._run)

    def reported(
        self, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, float]]
    ) -> Mapping[str, Any]:
        return {**metrics, **self._over_ranks(self._conductor.take_epoch_metrics())}

    def validate(self) -> Metrics:
        metrics: Metrics = self._briefly(self._measure)
        return metrics

    def _measure(self) -> dict[str, float]:
        found = self._conductor.validate()
        return self._over_ranks(found, self._conductor.shares)

    def _over_ranks(
        self, metrics: Metrics, shares: Mapping[str, tuple[str, float]] | None = None
    ) -> dict[str, float]:
        """Return each metric that is a number over all ranks: their mean, or the reduction that
        `shares` gives.
        """
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
        # det sets the position itself.
        del checkpoint["loops"]
        directory = self._open.enter_context(
            tempfile.TemporaryDirectory(prefix="det-lightning-", dir=self._run.scratch)
        )
        self._checkpoint = str(Path(directory) / snapshot.LIGHTNING_FILE)
        torch.save(checkpoint, self._checkpoint)
        self._length = "unknown"

    # Facts

    @property
    def length(self) -> int | None:
        """The number of batches for which the trial is trained, or None if it is unknown."""
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
        """Ask the training data once for its length and its batch size.

        A boundary needs the length too.
        """
        if isinstance(self._length, str):
            conductor = self._conductor
            feed = conductor.feed if conductor.has_feed else self._briefly(lambda: conductor.feed)
            self._length, self._batch_size = feed.batches_per_epoch, feed.batch_size

    def close(self) -> None:
        with self._last, self._open:
            pass


class _LoopPace(LoopController):
    """Lets det-core's loop decide between two batches.

    If `instead` is set, the fit calls it and trains nothing.
    """

    def __init__(self, adapter: TrainerAdapter) -> None:
        self._adapter = adapter
        self.start: Callable[[], Loop] | None = None
        self.instead: Callable[[], Any] | None = None
        self.result: Any = None
        self._loop: Loop | None = None
        self._length: int | None = None

    def begin(self, fit: Fit) -> bool:
        if self.instead is not None:
            self.result = self.instead()
            return True
        assert self.start is not None
        self._loop, self._length = None, self._adapter.length
        self._loop = self.start()
        return bool(self._loop.stop)

    def step(self, fit: Fit, row: dict[str, Any]) -> bool:
        assert self._loop is not None
        # `bool` would call a method of `Stop` for every batch.
        return self._loop.step(row) is not Stop.NO

    def request_stop(self) -> None:
        if self._loop is not None:
            self._loop.request_stop()

    def is_last(self, done: int) -> bool:
        return self._length is not None and done >= self._length

    @property
    def owes_validation(self) -> bool:
        return self._loop is not None and self._loop.owes_validation

    @property
    def leaves(self) -> bool:
        return self.instead is not None or (
            self._loop is not None and self._loop.stop is Stop.PREEMPTED
        )

    def chiefs_buffers(self) -> AbstractContextManager[None]:
        return self._adapter.chiefs_buffers()

    def wrap(self, trainer: pl.Trainer) -> None:
        context, build = self._adapter.trial.context, self._adapter.build
        trainer.optimizers = [
            build.optimizer(context, partial(_same, each)) for each in trainer.optimizers
        ]
        for config in trainer.lr_scheduler_configs:
            config.scheduler = build.lr_scheduler(context, partial(_same, config.scheduler))


def _same(built: Any) -> Any:
    return built


def make_trainer(
    trial: LightningAdapter,
    run: RunInfo,
    conductor: TrialConductor,
    backend: TorchBackend | None,
    batches: Callable[[], int],
) -> pl.Trainer:
    """Return a Trainer that knows the length of the run, `batches()`, and trains until it is
    stopped.

    It validates and saves only on request.
    """
    given = dict(trial.trainer_arguments)
    if divides(given, run):
        must_divide(trial.lightning_module)
    callbacks = [*_listed(given.pop("callbacks", None)), *_listed(trial.build_callbacks())]
    settings.check_callbacks(callbacks)
    given.pop("enable_checkpointing", None)
    chosen = {
        **_DEFAULTS,
        **given,
        "callbacks": [conductor, *callbacks],
        "max_epochs": -1,
        "check_val_every_n_epoch": settings.NEVER,
        "num_sanity_val_steps": 0,
        "enable_checkpointing": False,
        "use_distributed_sampler": False,
        "accumulate_grad_batches": settings.accumulation(given, run.config),
        **_place(given, run, backend),
    }
    precision = settings.precision(trial.precision, run.config)
    if precision is not None:
        chosen["precision"] = precision
    if run.quick:
        chosen["limit_val_batches"] = 1
    if run.config.optimizations.compile:
        trial.lightning_module.compile()
    trainer = pl.Trainer(**chosen)
    trainer.fit_loop = FitLoop(trainer, conductor, run.length, batches)
    return trainer


def _place(given: Mapping[str, Any], run: RunInfo, backend: TorchBackend | None) -> dict[str, Any]:
    """Return the accelerator, devices and strategy of a run."""
    device = choose_device(run)
    if backend is not None:
        return arguments(given, run, backend, device)
    own = given.get("accelerator")
    return (
        {"accelerator": "gpu" if device.type == "cuda" else "cpu"}
        | ({"accelerator": own} if own not in (None, "auto") else {})
        | {"devices": 1, "strategy": "auto"}
    )


def _listed(given: Any) -> list[pl.Callback]:
    listed = (
        list(given.values())
        if isinstance(given, Mapping)
        else [given]
        if isinstance(given, pl.Callback)
        else list(given or [])
    )
    for each in listed:
        if not isinstance(each, pl.Callback):
            raise TrialError(
                f"build_callbacks gives {type(each).__name__}, which is no Callback of"
                " lightning.pytorch"
                f"{settings.other_lightning(each) or ', whose Trainer trains a LightningAdapter'}"
            )
    return listed


def build_trial(
    trial: type[LightningAdapter], context: LightningTrialContext, **arguments: Any
) -> LightningAdapter:
    """Make a trial.

    Raises TrialError if the constructor takes other arguments or does not call `super().__init__`.
    """
    made = make_trial(trial, LightningAdapter, context, **arguments)
    if not hasattr(made, "lightning_module"):
        raise TrialError(
            f"{trial.__name__}.__init__ does not call super().__init__(context,"
            " lightning_module=...); it must, with your module"
        )
    return made


Rank = tuple[Mapping[str, float], Mapping[str, tuple[str, float]]]


def of_shares(ranks: Sequence[Rank]) -> dict[str, float]:
    """Return each metric over the ranks: their weighted mean, their sum, maximum or minimum.

    Each rank gives its metrics. It also gives the reduction (`mean`, `sum`, `max` or `min`) and the
    weight of those that it knows. An unknown metric is a mean with equal weights.
    """
    names = dict.fromkeys(name for metrics, _ in ranks for name in metrics)
    return {name: _reduced(name, [rank for rank in ranks if name in rank[0]]) for name in names}


def _reduced(name: str, ranks: Sequence[Rank]) -> float:
    values = [metrics[name] for metrics, _ in ranks]
    known = [shares.get(name, ("mean", 1.0)) for _, shares in ranks]
    reduction = known[0][0]
    if reduction != "mean":
        return {"sum": sum, "max": max, "min": min}[reduction](values)  # type: ignore[operator,no-any-return]
    if all(value == values[0] for value in values):
        return values[0]
    weights = [weight for _, weight in known]
    if not any(weights):
        weights = [1.0] * len(values)
    pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
    return sum(value * weight for value, weight in pairs) / sum(weights)
