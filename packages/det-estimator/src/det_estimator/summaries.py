"""The model's own summaries as TensorBoard's event files."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import tensorflow as tf

from det_core import RunInfo


class Summaries:
    """Writes merged summaries on the chief, from the first one on, to the run's directory."""

    def __init__(self, run: RunInfo) -> None:
        self._directory = run.tensorboard_dir if run.distributed.rank == 0 else None
        self._writer: Any = None

    @property
    def write(self) -> Any:
        """A function of the summaries and the number of their batch; None where nothing is written."""
        return self._write if self._directory is not None else None

    def _write(self, summaries: bytes, number: int) -> None:
        if self._writer is None:
            with tf.Graph().as_default():
                self._writer = tf.compat.v1.summary.FileWriter(str(self._directory))
        self._writer.add_summary(summaries, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._writer is not None:
            self._writer.close()
