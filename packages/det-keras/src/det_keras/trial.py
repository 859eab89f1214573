"""What a user writes: a compiled model and its data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import TFKerasTrialContext
    from .data import InputData


class TFKerasTrial(ABC):
    """One Keras model with its data.

    Keras trains it by `model.fit`, with the step, the metrics and the options that it was compiled with; det decides how far.
    """

    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    @abstractmethod
    def build_model(self) -> Any:
        """Return the model, compiled, after passing it through `context.wrap_model(model)`.

        Where the trial defines `build_optimizer()`, the model is compiled with `self.optimizer`, which that returned.
        """

    @abstractmethod
    def build_training_data_loader(self) -> InputData:
        """Return the training data: arrays, a `tf.data.Dataset`, a sequence or a `SequenceAdapter`."""

    @abstractmethod
    def build_validation_data_loader(self) -> InputData:
        """Return the validation data, of any of those kinds; the whole of it is evaluated at each validation."""

    def keras_callbacks(self) -> list[Any]:
        """Return callbacks: Keras's, those of `det_keras.callbacks`, or your own."""
        return []
