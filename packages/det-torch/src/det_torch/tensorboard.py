"""The TensorBoard writer of a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from det_core import DetError


class Writer:
    """Opens a `SummaryWriter` when it is first needed.

    With `recorded` false, for a trial that is loaded for use, it returns a writer that ignores all
    calls.
    """

    def __init__(self, directory: Path | None, *, recorded: bool = True) -> None:
        self.directory = directory
        self._recorded = recorded
        self._writer: Any = None

    def writer(self) -> Any:
        """Return the writer. Raises DetError without a directory, or without `tensorboard`."""
        if not self._recorded:
            return _Nowhere()
        if self.directory is None:
            raise DetError(
                "this run has no directory for TensorBoard's files; make a SummaryWriter of"
                " your own"
            )
        if self._writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise DetError(
                    "get_tensorboard_writer() needs tensorboard; pip install tensorboard"
                ) from error
            self._writer = SummaryWriter(str(self.directory))
        return self._writer

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class _Nowhere:
    """A `SummaryWriter` that writes nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None
