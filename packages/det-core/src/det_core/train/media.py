"""Writes the images, tables and texts that a trial logs, next to its TensorBoard event files.

The files are `media/NAME/BATCHES.png` (or `.jpg`), `.json` and `.txt`. A `/` in a name is written
`%2F`. Each file is renamed into place, so a reader sees it whole or not at all. A file at the same
name and position is replaced, for example by a run that resumed from a checkpoint.

Arrays are encoded as PNG with zlib. That needs no package and gives the same bytes everywhere.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from . import arguments as check
from .failure import line_of_caller

FOLDER = "media"
MOST_BYTES = 256 << 20
"""The limit for all that a trial logs."""
MOST_FILES = 10_000
MOST_BYTES_EACH = 16 << 20
KINDS = {".png": "image", ".jpg": "image", ".json": "table", ".txt": "text"}

_PART = r"\w[\w .+=,()-]*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")
_FOLDER = re.compile(rf"{_PART}(%2F{_PART})*")
_FILE = re.compile(r"(0|[1-9][0-9]{0,18})(\.png|\.jpg|\.json|\.txt)", re.ASCII)
_LONGEST_NAME = 200
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}
_PIL_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
_EXACT = 2**53
_ROUNDING = 1e-3
_IMAGES = (
    "an array, a torch tensor, a PIL image, a matplotlib figure, or a PNG or JPEG file as a path or"
    " as bytes"
)
_SHAPES = (
    "an array of height x width, or of height x width x channels with 1, 3 or 4 channels. "
    "In a torch tensor the channels may come first"
)
_TYPES = "an array of uint8, or of floats from 0 to 1"


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One file that a trial has logged.

    `path` is relative to the folder of media. `written` is in seconds since the epoch.
    """

    name: str
    kind: str
    batches: int
    path: str
    size: int
    written: float


class Media:
    """Writes what one trial logs below `directory`. For the chief.

    Without a directory it only checks its arguments.
    """

    def __init__(
        self, directory: Path | None, most_bytes: int = MOST_BYTES, most_files: int = MOST_FILES
    ) -> None:
        self.directory = directory
        self._most_bytes, self._most_files = most_bytes, most_files
        self._held: dict[str, int] | None = None
        self._warned: set[str] = set()

    def log_image(self, name: str, image: Any, batches: int) -> None:
        """Keep an image. Raises ArgumentError if it is none."""
        place = _place("log_image", name, batches)
        data = _encode_image(image)
        suffix, other = (".png", ".jpg") if data.startswith(_PNG) else (".jpg", ".png")
        self._write(place, suffix, data, instead_of=other)

    def log_table(self, name: str, data: Any, batches: int) -> None:
        """Keep a table. Raises ArgumentError if it is none."""
        self._write(_place("log_table", name, batches), ".json", _encode_table(data))

    def log_text(self, name: str, text: str, batches: int) -> None:
        """Keep a text. Raises ArgumentError if it is none."""
        place = _place("log_text", name, batches)
        if not isinstance(text, str):
            raise check.refuse("log_text", "text", text, "text")
        self._write(place, ".txt", text.encode(errors="backslashreplace"))

    def keep(self, path: str, data: bytes) -> None:
        """Keep a file that was logged on another machine, under the path that `find_media` gave.

        Another path is ignored, so that it leads out of no folder.
        """
        name, _, file = path.partition("/")
        match = _FILE.fullmatch(file)
        if match is None or not _FOLDER.fullmatch(name):
            return
        other = {".png": ".jpg", ".jpg": ".png"}.get(match[2], "")
        self._write(f"{name}/{match[1]}", match[2], data, instead_of=other)

    def _write(self, place: str, suffix: str, data: bytes, instead_of: str = "") -> None:
        if self.directory is None:
            return
        try:
            self._replace(self.directory / FOLDER, place, suffix, data, instead_of)
        except OSError as error:
            # An image that cannot be written must not end the training.
            self._warn(f"cannot be written: {error.strerror or error}", place)

    def _replace(self, folder: Path, place: str, suffix: str, data: bytes, instead_of: str) -> None:
        if self._held is None:
            _remove_partial(folder)
            self._held = {each.path: each.size for each in find_media(folder)}
        held = self._held
        stays = {
            path: size
            for path, size in held.items()
            if path not in (place + suffix, place + instead_of)
        }
        if len(data) > MOST_BYTES_EACH:
            self._warn(
                f"has {_mib(len(data))}, and one may have {_mib(MOST_BYTES_EACH)}: log a"
                " smaller one",
                place,
            )
            return
        if sum(stays.values()) + len(data) > self._most_bytes or len(stays) >= self._most_files:
            most = f"{_mib(self._most_bytes)} or {self._most_files} files"
            self._warn(
                f"is one too many: images, tables and texts of a trial may have {most}; log fewer,"
                " or smaller ones"
            )
            return
        target = folder / (place + suffix)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}")
        try:
            partial.write_bytes(data)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        if instead_of:
            (folder / (place + instead_of)).unlink(missing_ok=True)
        self._held = {**stays, place + suffix: len(data)}

    def _warn(self, what: str, place: str = "") -> None:
        """Print why something was not kept, once for each name, or once for all."""
        of = place.partition("/")[0]
        if of not in self._warned:
            self._warned.add(of)
            which = f"{_decode(of)!r}" if of else "this"
            sys.stderr.write(
                f"det: {line_of_caller()}{which} {what}. It is not kept, and training goes on\n"
            )


def find_media(folder: Path) -> Iterator[Logged]:
    """Yield what is in a folder of media, by name and position.

    Links and other files are skipped.
    """
    for directory in sorted(_entries(folder), key=lambda entry: entry.name):
        if not _FOLDER.fullmatch(directory.name) or not directory.is_dir(follow_symlinks=False):
            continue
        found = []
        for entry in _entries(Path(directory.path)):
            match = _FILE.fullmatch(entry.name)
            if match is not None and entry.is_file(follow_symlinks=False):
                found.append((int(match[1]), match[2], entry))
        for batches, suffix, entry in sorted(found, key=lambda each: each[:2]):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield Logged(
                name=_decode(directory.name),
                kind=KINDS[suffix],
                batches=batches,
                path=f"{directory.name}/{entry.name}",
                size=status.st_size,
                written=status.st_mtime,
            )


def find_file(folder: Path, path: str) -> Path | None:
    """Return the file of a path that `find_media` gave, or None if there is no such file.

    Only names of the form that `Media` writes are accepted, so that no path leads out of the
    folder.
    """
    name, _, file = path.partition("/")
    if not (_FOLDER.fullmatch(name) and _FILE.fullmatch(file)):
        return None
    places = (folder, folder / name, folder / name / file)
    try:
        return (
            None
            if any(place.is_symlink() for place in places) or not places[-1].is_file()
            else places[-1]
        )
    except OSError:
        # For example, the name is too long.
        return None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return list(entries)


def _remove_partial(folder: Path) -> None:
    """Remove files that a killed run left incomplete."""
    for directory in _entries(folder):
        if directory.is_dir(follow_symlinks=False):
            for entry in _entries(Path(directory.path)):
                if _FILE.fullmatch(entry.name.removeprefix(".")) and entry.name.startswith("."):
                    Path(entry.path).unlink(missing_ok=True)


def _place(call: str, name: Any, batches: Any) -> str:
    """Return the path of what is logged, without its suffix."""
    if (
        not isinstance(name, str)
        or not _NAME.fullmatch(name)
        or len(_encode(name).encode()) > _LONGEST_NAME
    ):
        raise check.refuse(
            *(call, "name", name),
            f"a name of at most {_LONGEST_NAME} bytes such as 'samples' or 'validation/confusion':"
            " letters, digits, spaces and _ . + = , ( ) -, each part beginning with a letter, a"
            " digit or _",
        )
    return f"{_encode(name)}/{check.whole(call, 'batches', batches)}"


def _encode(name: str) -> str:
    return name.replace("/", "%2F")


def _decode(folder: str) -> str:
    return folder.replace("%2F", "/")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.4g} MiB"


# Images


def _encode_image(image: Any) -> bytes:
    """Return an image as the bytes of a PNG or JPEG file."""
    if isinstance(image, str | Path):
        return _checked_file(_read(image), f"{str(image)!r}")
    if isinstance(image, bytes | bytearray):
        return _checked_file(bytes(image), f"{len(image)} bytes")
    buffer = io.BytesIO()
    # Neither library is imported here: a user who gives such an object has it.
    if callable(getattr(image, "savefig", None)):
        image.savefig(buffer, format="png")
        return buffer.getvalue()
    if callable(getattr(image, "save", None)) and hasattr(image, "mode"):
        (image if image.mode in _PIL_MODES else image.convert("RGB")).save(buffer, "PNG")
        return buffer.getvalue()
    return _encode_array(image)


def _read(path: str | Path) -> bytes:
    try:
        with open(path, "rb") as file:
            # One byte more than the limit shows that the file is too large.
            return file.read(MOST_BYTES_EACH + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise check.refuse(
            "log_image", "image", str(path), f"a file that can be read ({reason})"
        ) from None


def _checked_file(data: bytes, shown: str) -> bytes:
    if not data.startswith((_PNG, _JPEG)):
        raise check.refuse("log_image", "image", None, "a PNG or JPEG file", shown)
    return data


def _encode_array(image: Any) -> bytes:
    is_tensor = callable(getattr(image, "detach", None))
    if not is_tensor and not hasattr(image, "__array__"):
        raise check.refuse("log_image", "image", image, _IMAGES)
    numpy = import_module("numpy")
    if is_tensor:
        # NumPy has no bfloat16.
        image = image.detach().cpu()
        image = image.float() if image.is_floating_point() else image
    try:
        array = numpy.asarray(image)
    except (NotImplementedError, TypeError, ValueError):
        # A tensor of a graph that is being built has no value yet.
        raise check.refuse("log_image", "image", image, _IMAGES) from None
    shown = f"{array.dtype} of shape {tuple(array.shape)}"
    if array.ndim == 3 and is_tensor and array.shape[0] in _COLOUR_TYPES:
        array = numpy.moveaxis(array, 0, -1)
    array = array[:, :, None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] not in _COLOUR_TYPES or 0 in array.shape:
        way_out = _SHAPES
        if array.ndim == 4:
            way_out = "one image of the batch, such as image[0]"
        elif array.ndim == 3 and array.shape[0] in _COLOUR_TYPES:
            way_out = "numpy.moveaxis(image, 0, -1). In an array the channels come last"
        raise check.refuse("log_image", "image", image, way_out, shown)
    return _encode_png(_to_bytes(array, shown, numpy), numpy)


def _to_bytes(array: Any, shown: str, numpy: Any) -> Any:
    """Return an array of pixels as uint8."""
    if array.dtype == numpy.uint8:
        return array
    if array.dtype == numpy.bool_:
        return array.astype(numpy.uint8) * 255
    kind = array.dtype.kind
    if kind not in "fiu":
        raise check.refuse("log_image", "image", array, _TYPES, shown)
    low, high = float(array.min()), float(array.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise check.refuse("log_image", "image", array, "an image without NaN and infinity", shown)
    most, slack = (1, _ROUNDING) if kind == "f" else (255, 0)
    if low < -slack or high > most + slack:
        of = f"{shown} from {low:.6g} to {high:.6g}"
        way_out = (
            f"values from 0 to {most}. Floats are from 0 to 1, and whole numbers from 0 to 255"
        )
        raise check.refuse("log_image", "image", array, way_out, of)
    if kind != "f":
        return array.astype(numpy.uint8)
    return (numpy.clip(array.astype(numpy.float64), 0, 1) * 255).round().astype(numpy.uint8)


def _encode_png(pixels: Any, numpy: Any) -> bytes:
    """Return pixels, height x width x channels of uint8, as a PNG file."""
    height, width, channels = pixels.shape
    rows = numpy.ascontiguousarray(pixels).reshape(height, width * channels)
    # Filter 2: each row is stored as its difference from the one above, which compresses better.
    filtered = numpy.full((height, width * channels + 1), 2, numpy.uint8)
    filtered[:, 1:] = numpy.diff(rows, axis=0, prepend=numpy.zeros_like(rows[:1]))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), 6)
    return _PNG + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# Tables


def _encode_table(data: Any) -> bytes:
    """Return a table as JSON: names of columns, and rows."""
    columns = _columns(data)
    lengths = {name: len(values) for name, values in columns.items()}
    if not columns or len(set(lengths.values())) > 1:
        has = ", ".join(f"{name!r}: {length}" for name, length in lengths.items()) or "no column"
        raise check.refuse(
            "log_table", "data", None, "columns of one length", f"columns of {has}"[:200]
        )
    cells = [[_cell(name, value) for value in values] for name, values in columns.items()]
    table = {"columns": list(columns), "rows": list(zip(*cells, strict=True))}
    return json.dumps(table, ensure_ascii=False).encode(errors="backslashreplace")


def _columns(data: Any) -> dict[str, Sequence[Any]]:
    way_out = "a dict of columns, a list of rows that are dicts, or a DataFrame"
    if callable(getattr(data, "to_dict", None)) and hasattr(data, "columns"):
        data = {name: list(data[name]) for name in data.columns}
    if isinstance(data, Mapping):
        columns = {name: _list(values) for name, values in data.items()}
    elif isinstance(data, list | tuple) and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        columns = {name: [row.get(name) for row in data] for name in names}
    else:
        raise check.refuse("log_table", "data", data, way_out)
    for name, values in columns.items():
        if values is None:
            raise check.refuse(
                "log_table",
                f"data[{name!r}]",
                data[name],
                "a list of cells, or an array of one dimension",
            )
    return {str(name): values for name, values in columns.items()}


def _list(values: Any) -> Any:
    """Return the cells of a column, or None if it is not one."""
    if callable(getattr(values, "detach", None)):
        values = values.detach().cpu()
    if callable(getattr(values, "tolist", None)):
        values = values.tolist()
    if isinstance(values, str | bytes | Mapping):
        return None
    try:
        return list(values)
    except TypeError:
        return None


def _cell(column: str, value: Any) -> str | int | float | bool | None:
    """Return a cell as JSON. Numbers that JSON cannot hold become text."""
    if callable(getattr(value, "item", None)) and getattr(value, "size", None) is not None:
        try:
            value = value.item()
        except (ValueError, RuntimeError):
            raise check.refuse(
                "log_table", f"data[{column!r}]", value, "one number or text in each cell"
            ) from None
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= _EXACT else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else "NaN" if math.isnan(value) else str(value)
    if isinstance(value, list | tuple | Mapping | bytes):
        raise check.refuse(
            "log_table", f"data[{column!r}]", value, "one number or text in each cell"
        )
    return str(value)
