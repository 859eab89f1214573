"""What a trial is given: its hyperparameters, the wrapping of its parts, and the steps of training.

As long as the API that it offers; what the methods do is elsewhere (`optim`, `precision`, `reducers`, `tensorboard`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from det_core import RunInfo, TrialContext, TrialError

from .backends import TorchBackend
from .data import to_device
from .lr import LRScheduler
from .optim import Steps
from .precision import Precision
from .ranks import Gradients
from .reducers import MetricReducer, ReducerSet
from .sharding import Blocks, Sharding, materialize
from .tensorboard import Writer


class PyTorchTrialContext(TrialContext):
    """The context of a `PyTorchTrial`. `models`, `optimizers` and `lr_schedulers` are what was wrapped, in order.

    With `managed` false (a trial that is loaded to be used, not trained) models stay where they are and nothing wraps them.
    `backend` is what the ranks exchange tensors over, None for a single process.
    """

    def __init__(
        self, run: RunInfo, device: torch.device, *, managed: bool = True, backend: TorchBackend | None = None
    ) -> None:
        super().__init__(run)
        self.backend = backend
        self._managed = managed
        self.device = device
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self.profiler: Any = None
        self.reducers = ReducerSet()
        optimizations = run.config.optimizations
        self.aggregation_frequency = optimizations.aggregation_frequency
        self.precision = Precision(optimizations.precision, device)
        self._compile = bool(optimizations.compile)
        self.sharding = Sharding(optimizations, backend)
        self._blocks: Blocks | None = None
        self.steps = Steps(self, optimizations.average_aggregated_gradients)
        if backend is not None:
            self.steps.gradients = Gradients(backend)
        self._compress = optimizations.gradient_compression
        self.experimental = Experimental(self)
        self.batches_per_epoch: int | None = None
        self.current_batch = -1
        self.auto_to_device = True
        self._tensorboard = Writer(run.tensorboard_dir, recorded=managed)
        # The two calls of every batch are the methods that do no more than is needed.
        self.step_optimizer = self.steps.step_optimizer  # type: ignore[method-assign]
        self.backward = self.steps.backward  # type: ignore[method-assign]

    # Parts

    def wrap_model(self, model: nn.Module, blocks: Blocks | None = None) -> nn.Module:
        """Register a model and place it on the device; use what it returns.

        Where `optimizations.sharding` divides it among the ranks, `blocks` says which of its modules are gathered one at a time:
        their classes, or a function that is true for them; by default the outermost whose class it has more than once.
        """
        if not isinstance(model, nn.Module):
            raise TrialError(f"wrap_model got {type(model).__name__}; give a torch.nn.Module")
        if not self._managed:
            materialize(model, self.device)
            self.models.append(model)
            return model
        self._blocks = blocks
        placed: nn.Module = self._run.build.model(self, lambda: model)
        self.models.append(placed)
        return placed

    def place_model(self, model: nn.Module) -> nn.Module:
        """Move a model to the device, under the compiler that the configuration asks for; divide it where that is asked for."""
        model = self.sharding.place(model, self.device, self.precision.type, self._blocks)
        if self._compile:
            model.compile()
        return model

    def wrap_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> torch.optim.Optimizer:
        """Register an optimizer; use what it returns.

        `average_aggregated_gradients` and `fp16_compression` decide for this optimizer, in place of the configuration's
        `average_aggregated_gradients` and `gradient_compression`. `backward_passes_per_step` is taken for old callers' sake:
        gradients are the mean over the ranks however often `backward` is called.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TrialError(f"wrap_optimizer got {type(optimizer).__name__}; give a torch.optim.Optimizer")
        if backward_passes_per_step < 1:
            raise TrialError(f"backward_passes_per_step is {backward_passes_per_step}; give a number of 1 or more")
        wrapped: torch.optim.Optimizer = (
            self._run.build.optimizer(self, lambda: optimizer) if self._managed else optimizer
        )
        self.sharding.check_optimizer(wrapped, self.models, bool(fp16_compression))
        if average_aggregated_gradients is not None:
            self.steps.set_average(wrapped, average_aggregated_gradients)
        if self.steps.gradients is not None:
            compress = self._compress if fp16_compression is None else fp16_compression
            self.steps.gradients.add(wrapped, compress, self.models)
        self.precision.watch(wrapped)
        self.optimizers.append(wrapped)
        return wrapped

    def wrap_lr_scheduler(self, lr_scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1) -> Any:
        """Register a scheduler of torch's, stepped every `frequency` units of `step_mode`; returns it."""
        return self.add_lr_scheduler(LRScheduler(lr_scheduler, step_mode, frequency)).scheduler

    def add_lr_scheduler(self, wrapped: LRScheduler) -> LRScheduler:
        """Register a scheduler that is an `LRScheduler` already."""
        raw = wrapped.scheduler
        if not any(getattr(raw, "optimizer", None) is optimizer for optimizer in self.optimizers):
            raise TrialError(
                "the LR scheduler's optimizer is not wrapped; use an optimizer that wrap_optimizer() returned"
            )
        if self._managed:
            wrapped.scheduler = self._run.build.lr_scheduler(self, lambda: raw)
        self.lr_schedulers.append(wrapped)
        return wrapped

    def wrap_scaler(self, scaler: Any) -> Any:
        """Register a gradient scaler, whose state is saved, before any model; the trial scales and updates by itself."""
        if self.models:
            raise TrialError("wrap_scaler() comes before wrap_model(); move it up")
        return self.precision.wrap_scaler(scaler)

    def wrap_reducer(
        self,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Register a metric that the trial updates batch by batch; a function gets a list of all values of all ranks."""
        return self.reducers.add(reducer, name, for_training, for_validation)

    def configure_apex_amp(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: apex is gone."""
        raise TrialError(
            "configure_apex_amp: apex is no longer developed; set optimizations.precision to fp16 or bf16, or call "
            "context.experimental.use_amp()"
        )

    # Steps, replaced by those of `Steps` for each instance

    def backward(
        self, loss: torch.Tensor, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Compute gradients, scaled where the precision needs it."""
        raise NotImplementedError

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: Callable[[Iterator[torch.Tensor]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Step the optimizer on every `aggregation_frequency`-th batch, after clipping; then zero the gradients."""
        raise NotImplementedError

    def to_device(self, data: Any) -> Any:
        """Move tensors and arrays, nested in dicts, lists and tuples, to the device."""
        return to_device(data, self.device)

    # Facts

    def begin(self, run: RunInfo) -> None:
        """Serve another run of the same trial: one that is told, only now, where it begins."""
        self._run = run
        self.current_batch = -1
        self._stop_requested = False
        self._request_stop = lambda: None

    # Where training is

    def current_train_batch(self) -> int:
        """Return the number of the batch that is being trained, from 0. Raises TrialError before training."""
        if self.current_batch < 0:
            raise TrialError("training has not started; ask for the batch in train_batch()")
        return self.current_batch

    def current_train_epoch(self) -> int:
        """Return the epoch that is being trained, from 0."""
        batch = self.current_train_batch()
        return batch // self.batches_per_epoch if self.batches_per_epoch else 0

    def is_epoch_start(self) -> bool:
        """Return whether this is the first batch of an epoch."""
        batch = self.current_train_batch()
        return batch % self.batches_per_epoch == 0 if self.batches_per_epoch else batch == 0

    def is_epoch_end(self) -> bool:
        """Return whether this is the last batch of an epoch."""
        batch = self.current_train_batch()
        return bool(self.batches_per_epoch) and (batch + 1) % (self.batches_per_epoch or 1) == 0

    def before_optimizer_step(self, hooks: list[Callable[[Iterator[Any]], None]]) -> None:
        """Call these with the parameters of an optimizer before each of its steps."""
        self.steps.before_step = hooks

    # TensorBoard and the profiler

    def get_tensorboard_writer(self) -> Any:
        """Return a `SummaryWriter` on that directory."""
        return self._tensorboard.writer()

    def set_enable_tensorboard_logging(self, enable_tensorboard: bool) -> None:
        """Accept and do nothing: reports become event files in the driver, where `tensorboard` is installed."""
        if not isinstance(enable_tensorboard, bool):
            raise TrialError(f"set_enable_tensorboard_logging got {enable_tensorboard!r}; give True or False")

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Profile with `torch.profiler.profile(*args, **kwargs)`, stepped once for each batch; traces go to TensorBoard's place."""
        directory = self.get_tensorboard_path()
        if directory is not None:
            kwargs.setdefault("on_trace_ready", torch.profiler.tensorboard_trace_handler(str(directory)))
        self.profiler = torch.profiler.profile(*args, **kwargs)

    def close(self) -> None:
        """Close the writer."""
        self._tensorboard.close()


class Experimental:
    """`context.experimental`: names that Determined's users wrote."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context

    def use_amp(self) -> None:
        """Train in half precision with a gradient scaler that det drives; call it before `wrap_model`."""
        if self._context.models:
            raise TrialError("experimental.use_amp() comes before wrap_model(); move it up")
        self._context.precision.use("fp16")

    def disable_dataset_reproducibility_checks(self) -> None:
        """Do nothing: torch's own loaders are accepted, and resumed exactly where that is possible."""

    def disable_auto_to_device(self) -> None:
        """Hand batches to the trial as the loader gives them."""
        self._context.auto_to_device = False
