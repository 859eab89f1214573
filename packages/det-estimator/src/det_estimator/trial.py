"""What a user writes: an estimator, what it is trained on, what it is evaluated on, and hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from .context import EstimatorTrialContext

_SessionRunHook: Any = tf.estimator.SessionRunHook

ServingInputReceiverFn = Callable[..., Any]
"""Returns a `tf.estimator.export.ServingInputReceiver` or a `TensorServingInputReceiver`."""


class EstimatorTrial(ABC):
    """One estimator with its data.

    Optimizers go through `context.wrap_optimizer`, where the estimator or its `model_fn` makes them, and every
    `tf.data.Dataset` through `context.wrap_dataset`, right after an `input_fn` has created it.
    """

    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context

    @abstractmethod
    def build_estimator(self) -> Any:
        """Return a `tf.estimator.Estimator`, custom or premade; where it writes and when it saves is det's to say."""

    @abstractmethod
    def build_train_spec(self) -> Any:
        """Return a `tf.estimator.TrainSpec`, whose `input_fn` returns a dataset of batches.

        det repeats the dataset; `max_steps` is not looked at, as the searcher says how long a trial is.
        """

    @abstractmethod
    def build_validation_spec(self) -> Any:
        """Return a `tf.estimator.EvalSpec`, whose `input_fn` returns a finite dataset; `steps` None takes all of it."""

    def build_serving_input_receiver_fns(self) -> dict[str, ServingInputReceiverFn]:
        """Return, by name, how saved models receive their input; each checkpoint holds one saved model for each name."""
        return {}


class RunHook(_SessionRunHook):  # type: ignore[misc]
    """A `tf.estimator.SessionRunHook` that is told of checkpoints and of the trial's end; give it in `TrainSpec(hooks=...)`."""

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        """Called on every rank, after variables are restored from a checkpoint's directory."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called on the chief, when a checkpoint's directory is written; what is put there becomes a part of it."""

    def on_trial_close(self) -> None:
        """Called at the end of every run, also of one that fails."""
