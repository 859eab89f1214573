"""Reports as TensorBoard's event files, where `tensorboard` is installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class Events:
    """Writes to `directory`, if any, from the first report on. The tags are those of experiments."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory if find_spec("tensorboard") is not None else None
        self._writer: Any = None

    def add(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        """Write a report's numbers."""
        if self._directory is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._writer is None:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._writer = EventFileWriter(str(self._directory))
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        values = [Summary.Value(tag=_tag(group, name), simple_value=float(v)) for name, v in numbers.items()]
        self._writer.add_event(Event(step=batches, summary=Summary(value=values)))

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def _tag(group: str, name: str) -> str:
    if group == "training":
        return f"Determined/{name}"
    if group == "validation":
        return f"Determined/{name if name.startswith('val') else f'val_{name}'}"
    return f"{group}/{name}"
