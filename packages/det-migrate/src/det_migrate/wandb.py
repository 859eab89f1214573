"""Reads the files that Weights & Biases writes on the machine of a run."""

from __future__ import annotations

import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from det_core.errors import DetError
from det_driver.store import TrialState

from .others import OtherProject, OtherRun, Point, Record, Remark
from .values import finite_or_not

_HEAD = b":W&B"
_BLOCK, _RECORD_HEAD = 32_768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_Fields = dict[int, list[Any]]
# The numbers of the fields of a record that W&B's protocol gives them.
_HISTORY, _SUMMARY, _CONFIG, _RUN, _EXIT = 2, 3, 5, 17, 18


class _Damaged(Exception):
    """The file is damaged from here on."""


_ODD = (_Damaged, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""The errors that records of other types may raise. No version of W&B wrote such records."""


def find_wandb(place: Path) -> list[OtherProject]:
    """Return the runs at a path as a project each of W&B's projects and sweeps.

    The path is a file `.wandb`, or a directory with such files at any depth.
    """
    files = [place] if place.is_file() else sorted(place.rglob("*.wandb")) if place.is_dir() else []
    if not files:
        raise DetError(
            f"there is no file run-….wandb below {place}; name the directory wandb of a training"
        )
    found: dict[tuple[str, str], dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    remarks = []
    for file in files:
        try:
            run = next(
                (_fields(record[_RUN][0]) for record in _records(file) if _RUN in record), None
            )
        except (OSError, *_ODD) as error:
            raise DetError(f"cannot read {file}: {error}") from error
        if run is None:
            remarks.append(Remark(f"{file} says nothing of its run"))
            continue
        key = "/".join(filter(None, (_text(run, 2), _text(run, 3), _text(run, 1))))
        # A run that is resumed has several files.
        found[_text(run, 3) or "wandb", _text(run, 12)][key].append(file)
    projects = []
    for (project, sweep), runs in sorted(found.items()):
        versions = {key: str(sum(file.stat().st_size for file in own)) for key, own in runs.items()}
        name = f"{project}: sweep {sweep}" if sweep else project
        projects.append(OtherProject("W&B", name, versions, partial(_read_project, runs, remarks)))
        remarks = []
    if not projects:
        raise DetError(remarks[0].text)
    return projects


def _read_project(
    runs: Mapping[str, Sequence[Path]], remarks: Sequence[Remark]
) -> Iterator[Record]:
    yield from remarks
    for key, files in runs.items():
        reader = _Run(key)
        for file in files:
            yield from reader.read(file)
        yield reader.run()


class _Run:
    """The content of the files of one run."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._name = key
        self._started: float | None = None
        self._ended: float | None = None
        self._config: dict[str, Any] = {}
        self._summary: dict[str, Any] = {}
        self._facts: dict[str, Any] = {}
        self._exit: int | None = None
        self._log: Path | None = None

    def read(self, file: Path) -> Iterator[Record]:
        """Yield the values of a file. It is read as far as it is undamaged."""
        self._exit = None
        log = file.parent / "files" / "output.log"
        self._log = log if log.is_file() else self._log
        try:
            for record in _records(file):
                if _HISTORY in record:
                    yield from self._history(_fields(record[_HISTORY][0]))
                elif _RUN in record:
                    self._about(_fields(record[_RUN][0]))
                elif _CONFIG in record:
                    self._update(self._config, _fields(record[_CONFIG][0]))
                elif _SUMMARY in record:
                    self._update(self._summary, _fields(record[_SUMMARY][0]))
                elif _EXIT in record:
                    # A status of 0 is not written.
                    self._exit = _fields(record[_EXIT][0]).get(1, [0])[0]
        except (OSError, *_ODD) as error:
            yield Remark(f"{file} is read as far as it goes: {error}")

    def run(self) -> OtherRun:
        """Return the run, after all of its files were read."""
        config = {name: value for name, value in self._config.items() if not name.startswith("_")}
        summary = {name: value for name, value in self._summary.items() if not name.startswith("_")}
        reason = (
            "it never ended in W&B" if self._exit is None else f"it ended with status {self._exit}"
        )
        return OtherRun(
            key=self._key,
            name=self._name,
            state=TrialState.ERROR if self._exit != 0 else TrialState.COMPLETED,
            started=self._started,
            ended=self._ended,
            hparams=config,
            reason=None if self._exit == 0 else reason,
            log=self._log,
            facts={**self._facts, "summary": summary},
        )

    def _about(self, run: _Fields) -> None:
        self._update(self._config, _fields(run[4][0]) if 4 in run else {})
        texts = {"entity": 2, "group": 6, "job_type": 7, "notes": 9, "sweep": 12, "host": 13}
        self._facts |= {name: text for name, at in texts.items() if (text := _text(run, at))}
        self._facts |= (
            {"tags": [tag.decode(errors="replace") for tag in run[10]]} if 10 in run else {}
        )
        self._name = _text(run, 8) or self._key
        if 17 in run:
            time = _fields(run[17][0])
            began = time.get(1, [0])[0] + time.get(2, [0])[0] / 1e9
            self._started = began if self._started is None else min(self._started, began)

    def _history(self, history: _Fields) -> Iterator[Point]:
        values = dict(self._items(history, 1))
        step = float(
            values["_step"]
            if "_step" in values
            else _fields(history[2][0]).get(1, [0])[0]
            if 2 in history
            else 0
        )
        stamp = values.get("_timestamp")
        time = float(stamp) if isinstance(stamp, int | float) else None
        self._ended = time if time is not None else self._ended
        for name, value in values.items():
            if name.startswith("_"):
                continue
            for path, each in _flatten(name, finite_or_not(value)):
                is_number = isinstance(each, int | float) and not isinstance(each, bool)
                yield Point(self._key, path, step, time, _as_float(each) if is_number else None)

    def _update(self, target: dict[str, Any], record: _Fields) -> None:
        for name, value in self._items(record, 1):
            target[name] = value

    def _items(self, record: _Fields, at: int) -> Iterator[tuple[str, Any]]:
        """Yield the names and the values of a record's items. A nested name is joined by dots."""
        for data in record.get(at, ()):
            item = _fields(data)
            nested = [key.decode(errors="replace") for key in item.get(2, ())]
            yield ".".join(nested) or _text(item, 1), json.loads(_text(item, 16) or "null")


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    # A map with a _type is an image, a table or another file.
    if isinstance(value, dict) and "_type" not in value:
        for key, each in value.items():
            yield from _flatten(f"{name}.{key}", each)
    else:
        yield name, value


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _records(file: Path) -> Iterator[_Fields]:
    """Yield the records of a file: a log of blocks, in the format of LevelDB.

    A file that ends within a record ends there: the run was killed. Raises _Damaged for others.
    """
    with file.open("rb") as stream:
        if stream.read(_RECORD_HEAD)[: len(_HEAD)] != _HEAD:
            raise _Damaged("it is no file of W&B's")
        at, parts = _RECORD_HEAD, []
        while True:
            if (left := _BLOCK - at % _BLOCK) < _RECORD_HEAD:
                stream.read(left)
                at += left
            head = stream.read(_RECORD_HEAD)
            if len(head) < _RECORD_HEAD:
                return
            checksum, size, kind = (
                int.from_bytes(head[:4], "little"),
                int.from_bytes(head[4:6], "little"),
                head[6],
            )
            data = stream.read(size)
            at += _RECORD_HEAD + size
            if len(data) < size:
                return
            if (
                kind not in (_FULL, _FIRST, _MIDDLE, _LAST)
                or zlib.crc32(data, zlib.crc32(head[6:])) != checksum
            ):
                raise _Damaged(f"byte {at - size - _RECORD_HEAD} is damaged")
            parts.append(data)
            if kind in (_FULL, _LAST):
                yield _fields(b"".join(parts))
                parts = []


def _fields(data: bytes) -> _Fields:
    """Return the fields of a message of Protocol Buffers, by number: integers and bytes."""
    found: _Fields = defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value: int | bytes
        if tag & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = (8, at) if tag & 7 == 1 else (4, at) if tag & 7 == 5 else _varint(data, at)
            if tag & 7 not in (1, 2, 5) or at + size > len(data):
                raise _Damaged("a record is damaged")
            value = data[at : at + size]
            at += size
        found[tag >> 3].append(value)
    return dict(found)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer at a position, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise _Damaged("a record is damaged")


def _text(fields: _Fields, at: int) -> str:
    found = fields.get(at, [b""])[-1]
    return found.decode(errors="replace") if isinstance(found, bytes) else ""
