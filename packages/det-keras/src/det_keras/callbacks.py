"""Callbacks that act when det validates, reports and saves."""

from __future__ import annotations

from typing import Any

from .versions import keras

__all__ = [
    "Callback",
    "EarlyStopping",
    "LearningRateScheduler",
    "ReduceLROnPlateau",
    "TFKerasTensorBoard",
    "TensorBoard",
]


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback with the hooks that det adds.

    `logs` of `on_test_end` are the validation's metrics over all ranks, named `val_...`. Metrics
    that a callback adds to them are reported.
    """

    def on_train_workload_begin(
        self, total_batches_trained: int, batches_requested: int, logs: Any
    ) -> None:
        """Called before the batches of one report."""

    def on_train_workload_end(self, total_batches_trained: int, logs: Any) -> None:
        """Called with the metrics of a report."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called on the chief when the files of a checkpoint are written.

        The directory is temporary.
        """

    def get_state(self) -> Any:
        """Return the state that a checkpoint keeps: numbers, text, arrays, lists and dicts."""
        return {}

    def load_state(self, state: Any) -> None:
        """Restore the state that `get_state` returned."""


class _AtValidations:
    """Makes a callback of Keras act at each validation instead of at the end of each epoch."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        pass

    def on_test_end(self, logs: Any = None) -> None:
        self._validations = getattr(self, "_validations", 0) + 1
        super().on_epoch_end(self._validations - 1, logs)  # type: ignore[misc]


class EarlyStopping(_AtValidations, keras.callbacks.EarlyStopping):  # type: ignore[misc]
    """Keras's EarlyStopping by validations: `patience` counts them.

    A checkpoint keeps its best value and weights.
    """


class ReduceLROnPlateau(_AtValidations, keras.callbacks.ReduceLROnPlateau):  # type: ignore[misc]
    """Keras's ReduceLROnPlateau, by validations: `patience` and `cooldown` count them."""


class LearningRateScheduler(keras.callbacks.LearningRateScheduler):  # type: ignore[misc]
    """Keras's LearningRateScheduler: `schedule(epoch, lr)` is called when an epoch begins."""


class TensorBoard(keras.callbacks.TensorBoard):  # type: ignore[misc]
    """Keras's TensorBoard, with its arguments.

    It ignores `log_dir` and writes to the trial's own directory.
    """


TFKerasTensorBoard = TensorBoard
"""The first name of it in Determined."""
