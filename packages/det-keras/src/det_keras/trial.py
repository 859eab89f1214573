"""The class that a user writes: a compiled model and its data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import TFKerasTrialContext
    from .data import InputData


class TFKerasTrial(ABC):
    """One Keras model with its data.

    Keras trains it by `model.fit`, with the step, the metrics and the options that it was compiled
    with. det decides how long it trains.
    """

    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    @abstractmethod
    def build_model(self) -> Any:
        """Return the model, compiled, after passing it through `context.wrap_model(model)`.

        If the trial defines `build_optimizer()`, its result is in `self.optimizer`. Compile the
        model with that.
        """

    @abstractmethod
    def build_training_data_loader(self) -> InputData:
        """Return training data: arrays, a `tf.data.Dataset`, a sequence or a `SequenceAdapter`."""

    @abstractmethod
    def build_validation_data_loader(self) -> InputData:
        """Return the validation data, of any of those kinds.

        Each validation evaluates all of it.
        """

    def keras_callbacks(self) -> list[Any]:
        """Return callbacks: Keras's, those of `det_keras.callbacks`, or your own."""
        return []
