"""Data sets whose records are made once, stored on disk, and read by number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import Dataset

from det_core.data import ArrayKind, DatasetCache, Records, ValueCodec
from det_core.errors import TrialError

_NUMERIC = frozenset("biufcSUmM")
_TENSORS = {
    str(kind).removeprefix("torch."): kind
    for kind in (
        *(
            torch.bool,
            torch.uint8,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.float16,
            torch.bfloat16,
        ),
        *(torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
}


def _array(value: Any) -> tuple[str, tuple[int, ...], Any] | None:
    if not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind not in _NUMERIC:
        return None
    return (
        ("=" if isinstance(value, np.generic) else "") + value.dtype.str,
        value.shape,
        value.tobytes(),
    )


def _as_array(name: str, shape: list[int], data: memoryview) -> Any:
    if name.lstrip("=<>|")[:1] not in _NUMERIC:
        raise TrialError(
            f"a cached record holds an array of type {name!r}, which is never written; make the"
            " cache again"
        )
    array = np.frombuffer(data, np.dtype(name.removeprefix("="))).reshape(shape).copy()
    return array[()] if name[0] == "=" else array


def _tensor(value: Any) -> tuple[str, tuple[int, ...], Any] | None:
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if type(value) is not torch.Tensor or value.layout is not torch.strided or name not in _TENSORS:
        return None
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return name, tuple(value.shape), flat.view(torch.uint8).numpy().tobytes()


def _as_tensor(name: str, shape: list[int], data: memoryview) -> Any:
    kind = _TENSORS[name]
    return (
        torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
        if len(data)
        else torch.empty(shape, dtype=kind)
    )


_CODEC = ValueCodec(
    ArrayKind(code=1, dump=_array, load=_as_array), ArrayKind(code=2, dump=_tensor, load=_as_tensor)
)


@final
class CachedDataset(Dataset[Any]):
    """A map-style dataset of cached records.

    Loaders shuffle, shard and resume it like any other map-style dataset.

    It can be passed to worker processes that are forked or spawned.
    """

    def __init__(self, records: Records) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Any:
        return _CODEC.decode(self.records[index])


def cached(
    name: str,
    version: str,
    make: Callable[[], Iterable[Any]],
    *,
    context: Any = None,
    directory: str | Path | None = None,
    shards: int = 1,
) -> CachedDataset:
    """Return a map-style dataset of the records that `make()` gave on the first call for this name
    and version.

    `make` returns an iterable of records: numbers, text, bytes, arrays, tensors, and lists, tuples
    and dicts of them. If several processes ask at once, ranks and trials alike, one of them calls
    it and the others wait. With `shards` above 1, each of those processes writes a part. `make`
    must then return an object with a length and indices, such as another map-style dataset.

    The records are stored below `directory`. Without it, the `data_layer` of the `context`'s
    configuration names the place, and without that they are stored in `~/.cache/det/datasets`.

    Another version is another data set. Raises TrialError for a record of another kind, and for a
    record that was altered on disk.
    """
    layer: Mapping[str, Any] | None = None if context is None else context.run.config.data_layer
    if type(shards) is not int or shards < 1:
        raise TrialError(f"shards is {shards!r}; give a whole number, 1 or more")

    def encoded(shard: int, count: int) -> Iterator[bytes]:
        made: Any = make()
        if count > 1 and not (hasattr(made, "__getitem__") and hasattr(made, "__len__")):
            raise TrialError(
                f"{name!r} is made in {count} shards of {type(made).__name__}, which has no"
                " indices; return a map-style dataset, or leave shards out"
            )
        if hasattr(made, "__getitem__") and hasattr(made, "__len__"):
            size = len(made)
            made = map(made.__getitem__, range(size * shard // count, size * (shard + 1) // count))
        elif not isinstance(made, Iterable):
            raise TrialError(
                f"the function that makes {name!r} returned {type(made).__name__}; return an"
                " iterable of records"
            )
        return map(_CODEC.encode, made)

    return CachedDataset(
        DatasetCache.of(layer, directory).open(name, version, encoded, kind="values", shards=shards)
    )
