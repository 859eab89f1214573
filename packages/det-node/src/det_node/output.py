"""Keeps output that cannot be written from ending what runs."""

from __future__ import annotations

import os
from typing import Any


class Unbreakable:
    """A stream that drops what is written after an error.

    Its reader may have closed it, as `tee` does at Ctrl-C, or its disk may be full.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.failure = ""
        """Why output was lost. Empty where the reader has closed the stream."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        self._do(self._stream.write, data)
        return len(data)

    def flush(self) -> None:
        self._do(self._stream.flush)

    def _do(self, act: Any, *arguments: Any) -> None:
        try:
            act(*arguments)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.failure = self.failure or error.strerror or str(error)
            discard(self._stream)


def discard(stream: Any) -> None:
    """Redirect a stream to /dev/null, with what its buffer holds."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
