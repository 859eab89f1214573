"""The classes that a user writes: an estimator, its training and validation data, and hooks."""

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

    Pass optimizers through `context.wrap_optimizer` where the estimator or its `model_fn` makes
    them. Pass every `tf.data.Dataset` through `context.wrap_dataset` right after an `input_fn` has
    created it.
    """

    def __init__(self, context: EstimatorTrialContext) -> None:
        self.context = context

    @abstractmethod
    def build_estimator(self) -> Any:
        """Return a `tf.estimator.Estimator`, custom or premade.

        det decides where it writes and when it saves.
        """

    @abstractmethod
    def build_train_spec(self) -> Any:
        """Return a `tf.estimator.TrainSpec`, whose `input_fn` returns a dataset of batches.

        det repeats the dataset. `max_steps` is ignored, because the searcher decides how long a
        trial is.
        """

    @abstractmethod
    def build_validation_spec(self) -> Any:
        """Return a `tf.estimator.EvalSpec`, whose `input_fn` returns a finite dataset.

        With `steps` None, a validation uses all of it.
        """

    def build_serving_input_receiver_fns(self) -> dict[str, ServingInputReceiverFn]:
        """Return, by name, functions that define the inputs of saved models.

        Each checkpoint holds one saved model for each name.
        """
        return {}


class RunHook(_SessionRunHook):  # type: ignore[misc]
    """A `tf.estimator.SessionRunHook` with methods for checkpoints and the trial's end.

    Give it in `TrainSpec(hooks=...)`.
    """

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        """Called on every rank, after variables are restored from a checkpoint's directory."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called on the chief when a checkpoint's directory is written.

        Files that it adds become part of it.
        """

    def on_trial_close(self) -> None:
        """Called at the end of every run, also of one that fails."""
