"""Hooks of a session that take part in the life of a trial."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_SessionRunHook: Any = tf.estimator.SessionRunHook


class RunHook(_SessionRunHook):  # type: ignore[misc]
    """A `tf.estimator.SessionRunHook` that is told of checkpoints and of the trial's end; give it in `TrainSpec(hooks=...)`."""

    def on_checkpoint_load(self, checkpoint_dir: str) -> None:
        """Called on every rank, after variables are restored from a checkpoint's directory."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Called on the chief, when a checkpoint's directory is written; what is put there becomes a part of it."""

    def on_trial_close(self) -> None:
        """Called at the end of every run, also of one that fails."""
