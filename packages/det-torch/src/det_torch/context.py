"""The context of a trial: its hyperparameters, methods that wrap its parts, and the steps of
training.

The methods are implemented in other modules (`optim`, `precision`, `reducers`, `tensorboard`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from det_core import RunInfo, TrialContext, TrialError
from det_core.train.ranks import global_batch_size
from det_core.train.run import length_of

from .backends import TorchBackend
from .data import epoch_batches, to_device
from .lr import LRScheduler
from .optim import Steps
from .precision import Precision
from .ranks import Gradients
from .reducers import MetricReducer, ReducerSet
from .sharding import Blocks, Sharding, materialize
from .tensorboard import Writer


class PyTorchTrialContext(TrialContext):
    """The context of a `PyTorchTrial`.

    `models`, `optimizers` and `lr_schedulers` list the wrapped parts in order.

    With `managed` false, for a trial that is loaded for use and not for training, nothing is
    wrapped and models stay on their device. `backend` exchanges tensors between ranks. It is None
    for a single process.
    """

    def __init__(
        self,
        run: RunInfo,
        device: torch.device,
        *,
        managed: bool = True,
        backend: TorchBackend | None = None,
    ) -> None:
        super().__init__(run)
        self.backend = backend
        self._managed = managed
        self.device = device
        self.models: list[nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self._first_groups: dict[int, list[list[int]]] = {}
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
        # These two are called for every batch, so that the methods of `Steps` are called directly.
        self.step_optimizer = self.steps.step_optimizer  # type: ignore[method-assign]
        self.backward = self.steps.backward  # type: ignore[method-assign]

    # Parts

    def wrap_model(self, model: nn.Module, blocks: Blocks | None = None) -> nn.Module:
        """Register a model, move it to the device and return the model to use from then on.

        Call it for every model, before `wrap_optimizer` gets its parameters. A checkpoint holds the
        registered models only. `optimizations.compile` and `optimizations.sharding` take effect
        here.

        `blocks` matters with `optimizations.sharding` only. It selects the modules that are
        gathered one at a time: by their classes, or by a function that returns True for them. By
        default these are the outermost modules whose class occurs more than once in the model.

        Raises TrialError for an object that is not a `torch.nn.Module`.
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
        """Move a model to the device. Shard and compile it if the configuration asks for that."""
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
        """Register an optimizer of registered models and return the optimizer to give to
        `step_optimizer`.

        On several ranks, its steps use the mean of the ranks' gradients.

        - `average_aggregated_gradients`: whether gradients of `aggregation_frequency` batches are
          divided by their number. The default is `optimizations.average_aggregated_gradients`.
        - `fp16_compression`: whether gradients travel between ranks in 16 bits. The default is
          `optimizations.gradient_compression`.
        - `backward_passes_per_step`: has no effect, as gradients are averaged however often
          `backward` is called.

        Raises TrialError for an object that is not a `torch.optim.Optimizer`.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TrialError(
                f"wrap_optimizer got {type(optimizer).__name__}; give a torch.optim.Optimizer"
            )
        if backward_passes_per_step < 1:
            raise TrialError(
                f"backward_passes_per_step is {backward_passes_per_step}; give a number of 1 or"
                " more"
            )
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
        self._first_groups[id(wrapped)] = _groups(wrapped)
        return wrapped

    def has_first_groups(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer's parameter groups hold the same parameters as when it was
        wrapped.
        """
        return self._first_groups[id(optimizer)] == _groups(optimizer)

    def wrap_lr_scheduler(
        self, lr_scheduler: Any, step_mode: LRScheduler.StepMode, frequency: int = 1
    ) -> Any:
        """Register a torch scheduler and return it.

        det steps it every `frequency` units of `step_mode`: epochs, batches, or steps of its
        optimizer. With `MANUAL_STEP` the trial steps it. A checkpoint holds its state.

        Raises TrialError in these cases:

        - Its optimizer is not registered.
        - `frequency` is not a whole number of 1 or more.
        - It is a `ReduceLROnPlateau` with another mode than `MANUAL_STEP`. Only the trial knows the
          metric that it needs.
        """
        return self.add_lr_scheduler(LRScheduler(lr_scheduler, step_mode, frequency)).scheduler

    def add_lr_scheduler(self, wrapped: LRScheduler) -> LRScheduler:
        """Register a scheduler that is already an `LRScheduler`."""
        raw = wrapped.scheduler
        if not any(getattr(raw, "optimizer", None) is optimizer for optimizer in self.optimizers):
            raise TrialError(
                "the LR scheduler's optimizer is not wrapped; use an optimizer that"
                " wrap_optimizer() returned"
            )
        if self._managed:
            wrapped.scheduler = self._run.build.lr_scheduler(self, lambda: raw)
            if wrapped.step_mode is LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP:
                raw.optimizer.register_step_post_hook(wrapped.after_optimizer_step)
        self.lr_schedulers.append(wrapped)
        return wrapped

    def wrap_scaler(self, scaler: Any) -> Any:
        """Register a gradient scaler and return it.

        A checkpoint holds its state. The trial scales losses and updates the scaler itself, and
        gives it to `step_optimizer`. Raises TrialError after `wrap_model`.
        """
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
        """Register a metric that the trial updates batch by batch.

        Returns the object that has `update`.

        - `reducer`: a `MetricReducer`, or a function. The function gets the list of all updates of
          all ranks, in the order of the data, and returns the metric.
        - `name`: the metric's name, or None if the reducer returns a dict of metrics.
        - `for_training`, `for_validation`: which reports include it.

        Raises TrialError for another kind of object, and for a reducer that is registered already.
        """
        return self.reducers.add(reducer, name, for_training, for_validation)

    def autocast_forward_pass(self, to_wrap: nn.Module) -> nn.Module:
        """Return the module unchanged.

        With half precision, the trial's whole steps run under autocast.
        """
        return to_wrap

    def configure_apex_amp(self, *args: Any, **kwargs: Any) -> Any:
        """Raise TrialError, as apex is no longer developed."""
        raise TrialError(
            "configure_apex_amp: apex is no longer developed; set optimizations.precision to fp16"
            " or bf16, or call context.experimental.use_amp()"
        )

    # Steps, replaced by those of `Steps` for each instance

    def backward(
        self,
        loss: torch.Tensor,
        gradient: Any = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute the gradients of `loss`, as `loss.backward` does.

        Gradients add up until `step_optimizer` steps. In half precision the loss is scaled first.
        The arguments are those of `torch.Tensor.backward`. `loss` is a tensor of one element unless
        `gradient` is given.
        """
        raise NotImplementedError

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: Callable[[Iterator[torch.Tensor]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Step an optimizer on every `aggregation_frequency`-th batch.

        On other batches this does nothing.

        - `clip_grads`: called with the optimizer's parameters before the step. Their gradients are
          complete, averaged over ranks and unscaled then.
        - `auto_zero_grads`: whether gradients are zeroed after the step.
        - `scaler`: the scaler that `wrap_scaler` returned, if the trial scales losses itself.
        """
        raise NotImplementedError

    def to_device(self, data: Any) -> Any:
        """Return `data` with its tensors on the device. NumPy arrays become tensors.

        Searches dicts, lists, tuples and named tuples. Batches of a trial's loaders have been moved
        already, unless `experimental.disable_auto_to_device` was called.
        """
        return to_device(data, self.device)

    # Facts

    def get_max_length(self, unit: str = "batches", loader: Any = None) -> int | None:
        """Return how long the trial trains from its start, if nothing ends it earlier.

        That is `searcher.max_length`, such as for a learning-rate schedule. In a search it is the
        length of the longest trials. None if the configuration has none.

        - `unit`: `batches` or `epochs`. Begun epochs count.
        - `loader`: the training data loader. It is needed if `max_length` is in another unit, as
          the trial is made before its loaders.

        Raises TrialError for another unit, if the loader is needed and missing, and if it cannot
        convert the length.
        """
        if unit not in ("batches", "epochs"):
            raise TrialError(f"get_max_length got {unit!r}; give 'batches' or 'epochs'")
        length = self._run.length or length_of(self._run.config)
        if length is None or length.unit == unit:
            return None if length is None else length.n
        batches = length.n
        if length.unit == "records":
            size = global_batch_size(self._run, lambda: getattr(loader, "batch_size", None))
            if not size:
                raise TrialError(
                    f"max_length is {length}, which cannot be counted without the size of a batch;"
                    " give global_batch_size among the hyperparameters, or"
                    f" get_max_length({unit!r}, loader)"
                )
            batches = max(1, length.n // size)
            if unit == "batches":
                return batches
        per_epoch = epoch_batches(loader, self.distributed.size) or self.batches_per_epoch
        if not per_epoch:
            raise TrialError(
                f"max_length is {length}, which needs the length of the training data to be counted"
                f" in {unit}; give get_max_length({unit!r}, loader) the training data loader, which"
                " must have a length"
            )
        return length.n * per_epoch if unit == "batches" else -(-batches // per_epoch)

    def begin(self, run: RunInfo) -> None:
        """Use this context for another run of the same trial. `run` says where that run begins."""
        self._run = run
        self.current_batch = -1
        self._stop_requested = False
        self._request_stop = lambda: None

    # Position

    def current_train_batch(self) -> int:
        """Return the number of the batch that is trained now, from 0.

        In a validation, it is the last batch before it. Raises TrialError before training.
        """
        if self.current_batch < 0:
            raise TrialError("training has not started; ask for the batch in train_batch()")
        return self.current_batch

    def current_train_epoch(self) -> int:
        """Return the epoch that is trained now, from 0."""
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
        """Call these hooks with an optimizer's parameters before each of its steps."""
        self.steps.before_step = hooks

    # TensorBoard and the profiler

    def get_tensorboard_writer(self) -> Any:
        """Return a `SummaryWriter` that writes to the directory of `get_tensorboard_path`."""
        return self._tensorboard.writer()

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Do nothing but check the argument.

        The driver writes event files where `tensorboard` is installed.
        """
        if not isinstance(enable_tensorboard_logging, bool):
            raise TrialError(
                f"set_enable_tensorboard_logging got {enable_tensorboard_logging!r}; give True or"
                " False"
            )

    def get_enable_tensorboard_logging(self) -> bool:
        """Return True, as the driver writes event files regardless of
        `set_enable_tensorboard_logging`.
        """
        return True

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Profile with `torch.profiler.profile(*args, **kwargs)`, which is stepped once for each
        batch.

        Traces are written to the directory of TensorBoard's files.
        """
        directory = self.get_tensorboard_path()
        if directory is not None:
            kwargs.setdefault(
                "on_trace_ready", torch.profiler.tensorboard_trace_handler(str(directory))
            )
        self.profiler = torch.profiler.profile(*args, **kwargs)

    def close(self) -> None:
        """Close the TensorBoard writer."""
        self._tensorboard.close()


def _groups(optimizer: torch.optim.Optimizer) -> list[list[int]]:
    return [[id(parameter) for parameter in group["params"]] for group in optimizer.param_groups]


class Experimental:
    """`context.experimental`: names of Determined's API."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context

    def use_amp(self) -> None:
        """Train in half precision with a gradient scaler that det drives.

        Call this before `wrap_model`.
        """
        if self._context.models:
            raise TrialError("experimental.use_amp() comes before wrap_model(); move it up")
        self._context.precision.use("fp16")

    def disable_dataset_reproducibility_checks(self) -> None:
        """Do nothing. torch's own loaders are accepted, and resumed exactly where
        that is possible.
        """

    def disable_auto_to_device(self) -> None:
        """Hand batches to the trial as the loader returns them."""
        self._context.auto_to_device = False

    def wrap_reducer(
        self,
        reducer: Callable[[list[Any]], Any] | MetricReducer,
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Register a metric that the trial updates, as `context.wrap_reducer` does."""
        return self._context.wrap_reducer(reducer, name, for_training, for_validation)

    def reset_reducers(self) -> None:
        """Reset all reducers. det does this itself before each report."""
        self._context.reducers.reset()

    def reduce_metrics(self, for_training: bool) -> dict[str, Any]:
        """Return the metrics of the training or validation reducers over all ranks.

        Every rank must call this.
        """
        return self._context.reducers.metrics(
            self._context.distributed.allgather, training=for_training
        )
