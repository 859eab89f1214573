"""TensorBoard's event files: written from reports, and copied to checkpoint storage.

They are written with TensorBoard's record writer. Its `EventFileWriter` would import all of
TensorFlow where that is installed, which takes seconds of CPU time.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_URL, uuid5

if TYPE_CHECKING:
    from ..storage import Storage

MANUAL = ".manual"
"""The name of a file that marks a directory of event files as copied by the script itself."""


class EventFile:
    """An event file in `directory`, made at the first report.

    Nothing is written without `directory`, or without TensorBoard.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory if find_spec("tensorboard") is not None else None
        self._file: Any = None
        self._records: Any = None

    def add(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        """Write the numbers of a report at step `batches`. A reader sees them at once.

        After a failure nothing more is written, and a warning says so.
        """
        if self._directory is None:
            return
        try:
            self._add(self._directory, group, batches, metrics)
        except OSError as error:
            warnings.warn(
                f"no more events for TensorBoard: {self._directory}: {error.strerror}", stacklevel=2
            )
            self._directory = None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _add(self, directory: Path, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._records is None:
            self._open(directory, Event(wall_time=time.time(), file_version="brain.Event:2"))
        numbers = {
            name: value for name, value in metrics.items() if isinstance(value, (int, float))
        }
        values = [
            Summary.Value(tag=tag(group, name), simple_value=float(value))
            for name, value in numbers.items()
        ]
        self._write(Event(wall_time=time.time(), step=batches, summary=Summary(value=values)))

    def _open(self, directory: Path, header: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        directory.mkdir(parents=True, exist_ok=True)
        # Readers read files in the order of their names.
        seconds, rest = divmod(time.time_ns(), 10**9)
        name = f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.{rest:09d}"
        self._file = (directory / name).open("wb", buffering=0)
        self._records = RecordWriter(self._file)
        self._write(header)

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())


def tag(group: str, name: str) -> str:
    """Return the tag of a metric as in Determined.

    That is `Determined/loss`, `Determined/val_loss` or `<group>/<name>`.
    """
    if group == "training":
        return f"Determined/{name}"
    if group == "validation":
        return f"Determined/{name if name.startswith('val') else f'val_{name}'}"
    return f"{group}/{name}"


def name_of_copy(directory: Path) -> str:
    """Return the name in checkpoint storage of a directory of this host. It is always the same."""
    return f"tensorboard-{uuid5(NAMESPACE_URL, f'{socket.gethostname()}:{directory.absolute()}')}"


def upload(
    storage: Storage, directory: Path, target: Callable[[Path], Path | None] = lambda path: path
) -> str | None:
    """Copy the files of a directory to checkpoint storage, and return their name there.

    They replace the files of an earlier call. `target` returns, for a relative path, the path to
    store it under, or None for a file that is not wanted. Returns None if there is nothing to copy.
    """
    from ..storage import MANIFEST

    found = [path.relative_to(directory) for path in sorted(directory.rglob("*")) if path.is_file()]
    wanted = {
        path: at for path in found if path.name != MANUAL and (at := target(path)) is not None
    }
    if not wanted:
        return None
    name = name_of_copy(directory)
    storage.delete(name)
    with storage.store(name) as place:
        for source, at in wanted.items():
            place.joinpath(at).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(directory / source, place / at)
        (place / MANIFEST).write_text(json.dumps({"name": name, "tensorboard": str(directory)}))
    return name
