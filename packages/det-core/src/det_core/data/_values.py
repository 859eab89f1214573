"""Encodes records as bytes that hold only values.

Reading a file of another machine runs no code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import TrialError

_TUPLE = 0
_PLAIN = (type(None), bool, int, float, str, bytes)


@dataclass(frozen=True, kw_only=True)
class ArrayKind:
    """How a framework's arrays are encoded: by the type's name, the shape and the bytes.

    `code`, from 1 to 127, identifies the kind in files and must never change. `dump` returns None
    for other values. `load` must not trust the type's name.
    """

    code: int
    dump: Callable[[Any], tuple[str, Sequence[int], Any] | None]
    load: Callable[[str, list[int], memoryview], Any]


class ValueCodec:
    """Encodes numbers, text, bytes, arrays, and lists, tuples and dicts of them.

    Decoding restores each type. Raises TrialError for anything else.
    """

    def __init__(self, *kinds: ArrayKind) -> None:
        self._kinds = {kind.code: kind for kind in kinds}
        self._decoder = msgspec.msgpack.Decoder(ext_hook=self._load)

    def encode(self, value: Any) -> bytes:
        try:
            return msgspec.msgpack.encode(self._plain(value, "record"))
        except (OverflowError, UnicodeEncodeError) as error:
            raise TrialError(
                "a record cannot be cached, as a number has more than 64 bits or a text no UTF-8:"
                f" {error}"
            ) from error

    def decode(self, data: Any) -> Any:
        return self._decoder.decode(data)

    def _plain(self, value: Any, where: str) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            return [self._plain(each, f"{where}[{n}]") for n, each in enumerate(value)]
        if kind is tuple:
            return msgspec.msgpack.Ext(
                _TUPLE,
                msgspec.msgpack.encode(
                    [self._plain(each, f"{where}[{n}]") for n, each in enumerate(value)]
                ),
            )
        if kind is dict:
            if all(type(key) in (str, int) for key in value):
                return {key: self._plain(each, f"{where}[{key!r}]") for key, each in value.items()}
            raise TrialError(
                f"{where} has keys that are neither text nor whole numbers and cannot be cached;"
                " name them by text"
            )
        for code, arrays in self._kinds.items():
            if (found := arrays.dump(value)) is not None:
                name, shape, raw = found
                head = msgspec.msgpack.encode((name, list(shape)))
                return msgspec.msgpack.Ext(
                    code, b"".join((len(head).to_bytes(2, "little"), head, raw))
                )
        raise TrialError(
            f"{where} is of type {kind.__module__}.{kind.__qualname__} and cannot be cached; give"
            " numbers, text, bytes, arrays, and lists, tuples and dicts of them (a picture as its"
            " array or its file's bytes)"
        )

    def _load(self, code: int, data: memoryview) -> Any:
        if code == _TUPLE:
            return tuple(self._decoder.decode(data))
        if code not in self._kinds:
            raise TrialError(
                f"a cached record has arrays of kind {code}, which this framework does not have;"
                " read it with the other"
            )
        head = 2 + int.from_bytes(data[:2], "little")
        name, shape = msgspec.msgpack.decode(data[2:head])
        return self._kinds[code].load(name, shape, data[head:])
