"""PyTorch behind core's loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from det_core import Adapter, Loop, MetricError, Metrics, RunInfo, TrialError, number

from . import state
from .build import build_trial, check_trial, training_step
from .callbacks import Callbacks
from .context import PyTorchTrialContext
from .data import TrainingStream, validation_batches
from .data._rng import seed_everything
from .lr import LRScheduler
from .trial import PyTorchTrial
from .validation import Validation


class TorchAdapter(Adapter[PyTorchTrial]):
    """Trains a `PyTorchTrial` under core's loop."""

    framework_version = str(torch.__version__)

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext, run: RunInfo) -> None:
        check_trial(trial, context)
        self.trial, self.context, self._run = trial, context, run
        self._callbacks = Callbacks(trial.build_callbacks())
        self._started = False
        self._callbacks("on_trial_startup", run.first_batch, run.checkpoint)
        self._stream = self._build_stream()
        self._validation = self._build_validation()
        self._data_state: dict[str, Any] | None = None
        self._position = run.first_batch
        self.save_more: Callable[[Path], None] = lambda path: None

    @classmethod
    def create(cls, trial: type[PyTorchTrial], run: RunInfo) -> TorchAdapter:
        seed_everything(run.seed)
        context = PyTorchTrialContext(run, choose_device(run))
        return cls(build_trial(trial, context), context, run)

    # Training

    def train(self, loop: Loop) -> None:
        context, callbacks = self.context, self._callbacks
        self._start()
        context.on_stop_requested = loop.request_stop
        if loop.done:
            self._stream.restore(self._data_state)
        batches = iter(loop.batches(self._stream.batches(loop.done)))
        if self._stream.warning:
            warnings.warn(self._stream.warning, stacklevel=1)
        context.reducers.reset(training=True)
        for model in context.models:
            model.train()
        step = self._step()
        per_epoch = self.batches_per_epoch or 0
        epochs = callbacks.epochs and per_epoch
        number_of = self._position = loop.done
        for batch in batches:
            context.current_batch = number_of
            epoch = number_of // per_epoch if per_epoch else 0
            if epochs and number_of % per_epoch == 0:
                callbacks("on_training_epoch_start", epoch)
            metrics = step(batch, epoch, number_of)
            number_of += 1
            self._position = number_of
            if epochs and number_of % per_epoch == 0:
                callbacks("on_training_epoch_end", epoch)
            loop.step(metrics)

    def _start(self) -> None:
        if not self._started:
            self._started = True
            self._callbacks("on_training_start")

    def _step(self) -> Callable[[Any, int, int], dict[str, Any]]:
        """Return the step of one batch: the trial's own, with as little around it as this run needs."""
        context = self.context
        train = training_step(self.trial, context)
        schedulers = [s for s in context.lr_schedulers if s.step_mode is not LRScheduler.StepMode.MANUAL_STEP]
        bare = not schedulers and context.precision.auto_scaler is None and context.profiler is None
        moving = _Moving(context)

        def step(batch: Any, epoch: int, index: int) -> dict[str, Any]:
            return detached(train(moving(batch) if moving.needed else batch, epoch, index))

        def full_step(batch: Any, epoch: int, index: int) -> dict[str, Any]:
            metrics = step(batch, epoch, index)
            if (index + 1) % context.aggregation_frequency == 0:
                context.precision.after_batch()
                for scheduler in schedulers:
                    scheduler.after_batch(index, context.aggregation_frequency, context.batches_per_epoch)
            if context.profiler is not None:
                context.profiler.step()
            return metrics

        return step if bare else full_step

    # Metrics

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        mine = plain_rows(rows)
        distributed = self.context.distributed
        if distributed.size == 1:
            return mine
        return [_mean_row(ranks) for ranks in zip(*distributed.allgather(mine), strict=True)]

    def reported(self, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, float]]) -> Mapping[str, Any]:
        context = self.context
        complete = dict(metrics) | context.reducers.metrics(context.distributed.allgather, training=True)
        context.reducers.reset(training=True)
        if self._callbacks.overriding("on_training_workload_end"):
            epoch = self.batches_per_epoch
            timed = complete | {"batches": self._position}
            if epoch:
                timed["epochs"] = self._position / epoch
            self._callbacks("on_training_workload_end", timed, [dict(row) for row in rows])
        return complete

    def validate(self) -> Metrics:
        self._start()
        return self._validation()

    # State

    def save(self, path: Path) -> None:
        context = self.context
        contents: dict[str, Any] = {
            "models_state_dict": [model.state_dict() for model in context.models],
            "optimizers_state_dict": [optimizer.state_dict() for optimizer in context.optimizers],
            "lr_schedulers_state_dict": [scheduler.state_dict() for scheduler in context.lr_schedulers],
            "callbacks": {},
            "rng_state": state.rng_state(),
            "data": self._stream.state(self._position),
        }
        if context.precision.scaler is not None:
            contents["scaler_state_dict"] = context.precision.scaler.state_dict()
        if context.distributed.rank != 0:
            return
        for name, callback in self._callbacks.named.items():
            contents["callbacks"][name] = callback.state_dict()
        self._callbacks("on_checkpoint_save_start", contents)
        for key, value in contents.items():
            state.check_plain(value, _place(key))
        state.save(contents, path)
        self.save_more(path)
        self._callbacks("on_checkpoint_end", str(path))
        self._callbacks("on_checkpoint_write_end", path)

    def saved(self, uuid: str) -> None:
        self._callbacks("on_checkpoint_upload_end", uuid)

    def load(self, path: Path) -> None:
        context = self.context
        contents = state.load(path)
        self._callbacks("on_checkpoint_load_start", contents)
        _load_each("model", context.models, contents.get("models_state_dict", []), state.load_weights)
        _load_each("optimizer", context.optimizers, contents.get("optimizers_state_dict", []), _load_state)
        _load_each("LR scheduler", context.lr_schedulers, contents.get("lr_schedulers_state_dict", []), _load_state)
        self._load_scaler(contents.get("scaler_state_dict"))
        for name, callback in self._callbacks.named.items():
            if name in contents.get("callbacks", {}):
                callback.load_state_dict(contents["callbacks"][name])
            elif type(callback).load_state_dict.__qualname__ != "PyTorchCallback.load_state_dict":
                warnings.warn(f"the checkpoint holds no state of the callback {name!r}; it starts afresh", stacklevel=1)
        self._data_state = contents.get("data")
        if "rng_state" in contents:
            state.set_rng_state(contents["rng_state"])

    def _load_scaler(self, saved: Any) -> None:
        scaler = self.context.precision.scaler
        if (scaler is None) != (saved is None):
            have, has = ("no", "a") if scaler is None else ("a", "no")
            warnings.warn(
                f"the trial has {have} gradient scaler, but the checkpoint has {has} state of one", stacklevel=1
            )
        elif scaler is not None:
            scaler.load_state_dict(saved)

    # Facts

    @property
    def batches(self) -> int:
        """Batches trained, from the trial's start."""
        return self._position

    @property
    def batches_per_epoch(self) -> int | None:
        return self._stream.batches_per_epoch

    @property
    def global_batch_size(self) -> int | None:
        size = self._run.hparams.get("global_batch_size")
        return size if isinstance(size, int) else None

    def close(self) -> None:
        try:
            self._callbacks("on_trial_shutdown")
        finally:
            self._stream.close()
            self._validation_data.close()
            self.context.close()

    # Data

    def _build_stream(self) -> TrainingStream:
        distributed = self.context.distributed
        loader = self._run.build.data_loader(self.context, self.trial.build_training_data_loader, "training")
        _must_be_loader(loader, "build_training_data_loader")
        stream = TrainingStream(loader, seed=self._run.seed, rank=distributed.rank, size=distributed.size)
        self.context.batches_per_epoch = distributed.broadcast(stream.batches_per_epoch)
        return stream

    def _build_validation(self) -> Validation:
        distributed = self.context.distributed
        loader = self._run.build.data_loader(self.context, self.trial.build_validation_data_loader, "validation")
        _must_be_loader(loader, "build_validation_data_loader")
        whole = type(self.trial).evaluate_full_dataset is not PyTorchTrial.evaluate_full_dataset
        rank, size = (0, 1) if whole else (distributed.rank, distributed.size)
        self._validation_data = validation_batches(loader, rank=rank, size=size, seed=self._run.seed)
        return Validation(self.trial, self.context, self._callbacks, self._validation_data, self._run.quick)


class _Moving:
    """Moves batches to the device, where the first shows that there is anything to move."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context
        self.needed = context.auto_to_device

    def __call__(self, batch: Any) -> Any:
        self.needed = self._context.device.type != "cpu" or _holds_arrays(batch)
        return self._context.to_device(batch)


def _holds_arrays(data: Any) -> bool:
    """Return whether anything in a batch is not on the CPU as a tensor yet, or is of a kind that cannot be told."""
    if isinstance(data, torch.Tensor):
        return data.device.type != "cpu"
    if isinstance(data, Mapping):
        return any(_holds_arrays(value) for value in data.values())
    if isinstance(data, (list, tuple)):
        return any(_holds_arrays(value) for value in data)
    return isinstance(data, np.ndarray) or hasattr(data, "to")


def detached(metrics: Any) -> dict[str, Any]:
    """Return what `train_batch` returned as a dict whose tensors hold no graph; they stay on the device."""
    if type(metrics) is torch.Tensor or isinstance(metrics, torch.Tensor):
        return {"loss": metrics.detach()}
    if isinstance(metrics, dict):
        return {k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in metrics.items()}
    raise TrialError(f"train_batch returned {type(metrics).__name__}; return the loss, or a dict of metrics by name")


def plain_rows(rows: Sequence[Metrics]) -> list[dict[str, float]]:
    """Turn the metrics of batches into numbers, with one transfer from the device for each name."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column(name, [row.get(name) for row in rows]) for name in names}
    return [
        {name: value for name in row if (value := columns[name][index]) is not None} for index, row in enumerate(rows)
    ]


def _column(name: str, values: list[Any]) -> list[float | None]:
    if all(isinstance(value, torch.Tensor) and value.ndim == 0 for value in values):
        numbers: list[float | None] = torch.stack(values).tolist()
        return numbers
    return [_number(name, value) for value in values]


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        return number(name, value)
    except MetricError as error:
        warnings.warn(f"{error}; it is left out of the training reports", stacklevel=1)
        return None


def _mean_row(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in ranks for name in row)
    found = {name: [row[name] for row in ranks if name in row] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


def choose_device(run: RunInfo) -> torch.device:
    """Return the GPU of this rank, or the CPU where there is none or no slot was asked for."""
    if torch.cuda.is_available() and run.slots > 0:
        device = torch.device("cuda", run.distributed.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def _load_state(part: Any, saved: Any) -> None:
    part.load_state_dict(saved)


def _load_each(what: str, parts: Sequence[Any], saved: Sequence[Any], load: Callable[[Any, Any], None]) -> None:
    if len(parts) != len(saved):
        raise TrialError(
            f"the trial has {len(parts)} {what}s, but the checkpoint holds {len(saved)}; it is of another trial"
        )
    for part, state_of in zip(parts, saved, strict=True):
        try:
            load(part, state_of)
        except (RuntimeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())
            raise TrialError(f"the checkpoint does not fit the trial's {what}: {reason}") from error


def _must_be_loader(loader: Any, method: str) -> None:
    if loader is None or not (hasattr(loader, "__iter__") or hasattr(loader, "get_data_loader")):
        raise TrialError(f"{method} returned {type(loader).__name__}; return a data loader or an iterable of batches")


def _place(key: str) -> str:
    return "callbacks' state" if key == "callbacks" else key
