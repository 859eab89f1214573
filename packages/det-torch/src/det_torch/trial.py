"""The class that a user derives: a model, its data, its optimizer, and one step of training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from .reduction import Reducer

if TYPE_CHECKING:
    import torch

    from .callbacks import PyTorchCallback
    from .context import PyTorchTrialContext


class PyTorchTrial(ABC):
    """One model with its data and its optimizer.

    There are two ways to make the parts:

    - Make them in `__init__` and pass each through `context.wrap_model`, `wrap_optimizer` and
      `wrap_lr_scheduler`.
    - Define `build_model()`, `build_optimizer(model)` and `build_lr_scheduler(optimizer)`, which
      return them. They are then available as `self.model`, `self.optimizer` and
      `self.lr_scheduler`.

    Define exactly one of `evaluate_batch` and `evaluate_full_dataset`.
    """

    model: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context

    @abstractmethod
    def train_batch(
        self, batch: Any, epoch_idx: int, batch_idx: int
    ) -> torch.Tensor | dict[str, Any]:
        """Train one batch: forward, `context.backward(loss)`, `context.step_optimizer(optimizer)`.

        Returns the loss, or metrics by name. The names must be the same for every batch.
        `batch_idx` counts from 0 over the whole trial.
        """

    @abstractmethod
    def build_training_data_loader(self) -> Any:
        """Return `det_torch.DataLoader`, torch's, a stateful one, or any iterable of batches."""

    @abstractmethod
    def build_validation_data_loader(self) -> Any:
        """Return a finite loader. Each validation evaluates all of it."""

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Return the metrics of one validation batch: numbers, or arrays of one shape.

        The names must be the same for every batch. `batch_idx` may be left out of the signature.
        """
        raise NotImplementedError

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        """Return the metrics of the whole validation set.

        Called on the chief only, with all of the data.
        """
        raise NotImplementedError

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return how metrics of `evaluate_batch` are reduced over batches: one reducer, or one for
        each metric.
        """
        return Reducer.AVG

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return callbacks by name. The name is the key of the callback's saved state."""
        return {}


def reset_parameters(model: Any) -> None:
    """Call `reset_parameters` of every submodule that has it, but not of the model itself."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset) and module is not model:
            reset()
