"""Writes and reads the parts of sharded tensors in a checkpoint, with
`torch.distributed.checkpoint`.

torch's own tools (`dcp_to_torch_save`) read these files. Nothing in them is unpickled here. Only
names and numbers are taken from the description of the tensors (`_metadata`), and tensors are read
with `weights_only`.
"""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from det_core import CheckpointError
from det_core.support.archives import check_zip

from ._metadata import FILE, read_metadata
from ._tensors import is_sharded
from ._tensors import like as divided_as

FOLDER = "shards"
KEY = "sharded"
Place = tuple[Any, ...]
Like = Callable[[Place, torch.Size], Any]
"""Finds the running trial's tensor for a place in the checkpoint and its shape.
The tensor at that place is sharded like the tensor that it returns. None stands for a whole tensor.
"""


def write(contents: dict[str, Any], directory: Path | None) -> dict[str, Any]:
    """Write this rank's parts of sharded tensors.

    Returns the other contents, in which `KEY` lists the places of the parts.

    Every rank must call this, with tensors in the same places.
    """
    found: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    rest: dict[str, Any] = _without(contents, (), found, facts)
    if directory is None or not facts:
        return contents
    _write(found, directory)
    return {**rest, KEY: facts}


def _without(value: Any, place: Place, found: dict[str, Any], facts: dict[str, Any]) -> Any:
    if is_sharded(value):
        name = ".".join(map(str, place))
        found[name] = _reduce_partial(value.detach())
        facts[name] = {
            "place": list(place),
            "dims": [p.dim if p.is_shard() else None for p in found[name].placements],
        }
        return None
    if isinstance(value, dict):
        # `copy` keeps the attributes of a state dict.
        same = copy.copy(value)
        for key, inner in value.items():
            same[key] = _without(inner, (*place, key), found, facts)
        return same
    if type(value) in (list, tuple):
        return type(value)(
            _without(inner, (*place, index), found, facts) for index, inner in enumerate(value)
        )
    return value


def _reduce_partial(value: Any) -> Any:
    """Return a tensor whose parts are values and not summands."""
    from torch.distributed.tensor import Replicate

    if not any(placement.is_partial() for placement in value.placements):
        return value
    return value.redistribute(
        placements=[Replicate() if p.is_partial() else p for p in value.placements]
    )


def _write(tensors: dict[str, Any], directory: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(tensors, storage_writer=FileSystemWriter(directory / FOLDER))
    except (RuntimeError, CheckpointException) as error:
        raise OSError(f"{directory / FOLDER} could not be written: {error}") from error


def whole(contents: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Put sharded tensors back into contents, each as a whole tensor. No other rank is needed."""
    return fill(contents, directory, lambda place, size: None)


def fill(contents: dict[str, Any], directory: Path, like: Like) -> dict[str, Any]:
    """Put sharded tensors back into contents, each sharded like the tensor that `like` returns.

    Whole tensors are sharded too if the tensor that `like` returns is.
    """
    if facts := contents.pop(KEY, None):
        metadata = read_metadata(directory / FOLDER / FILE)
        try:
            wanted = {
                name: _empty(fact, metadata.state_dict_metadata[name], like)
                for name, fact in dict(facts).items()
            }
            _read(wanted, metadata, directory / FOLDER)
            for name, fact in facts.items():
                _put(contents, fact["place"], wanted[name])
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            # A tensor without a description, an invalid place, or a size that exceeds the memory.
            reason = f"it has no {error}" if isinstance(error, LookupError) else str(error)
            raise CheckpointError(
                f"{directory / FOLDER} does not fit: {reason}; the checkpoint is damaged"
            ) from error
    return _divided(contents, (), like)  # type: ignore[no-any-return]


def _empty(fact: Mapping[str, Any], described: Any, like: Like) -> Any:
    """Return an empty tensor to read into."""
    size, dtype = described.size, described.properties.dtype
    model = like(tuple(fact["place"]), size)
    if not is_sharded(model):
        return torch.empty(size, dtype=dtype)
    from torch.distributed.tensor import Replicate, Shard, empty

    placements = model.placements
    if model.shape != size:
        dims = fact["dims"] if len(fact["dims"]) == len(placements) else [None] * len(placements)
        placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    return empty(size, dtype=dtype, device_mesh=model.device_mesh, placements=placements)


class _Part(io.RawIOBase):
    """A part of a file as a file object. torch's own does not find the end of the part."""

    def __init__(self, file: Any, offset: int, length: int) -> None:
        self._file, self._offset, self._length, self._at = file, offset, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, (0, self._at, self._length)[whence] + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._offset + self._at)
        count: int = self._file.readinto(memoryview(buffer)[: max(0, self._length - self._at)])
        self._at += count
        return count


def _read(wanted: dict[str, Any], metadata: Any, folder: Path) -> None:
    """Read the parts that this rank needs, without the other ranks.

    If one rank fails, no other waits for it.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    class TensorPlanner(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: Any) -> None:
            """Refuse an object, as torch would unpickle it and run its code."""
            raise ValueError("it holds an object in the place of a tensor")

    class TensorReader(FileSystemReader):
        def _slice_file(self, file: Any, sinfo: Any) -> Any:
            """Refuse a part that takes far more memory than its bytes, before torch decompresses
            it.
            """
            check_zip(_Part(file, sinfo.offset, sinfo.length))
            return super()._slice_file(file, sinfo)

    reader, planner = TensorReader(folder), TensorPlanner()
    try:
        planner.set_up_planner(wanted, metadata, True)
        reader.set_up_storage_reader(metadata, True)
        plan = reader.prepare_local_plan(planner.create_local_plan())
        plan = planner.finish_plan(planner.create_global_plan([plan])[0])
        reader.read_data(plan, planner).wait()
    except (Exception, CheckpointException) as error:
        # For crafted files, torch may raise any exception.
        raise CheckpointError(
            f"{folder} cannot be read: {error}; the checkpoint is damaged"
        ) from error


def _put(contents: Any, place: Sequence[Any], value: Any) -> None:
    """Set a value at a place in nested containers."""
    for key in place[:-1]:
        contents = contents[key]
    contents[place[-1]] = value


def _divided(value: Any, place: Place, like: Like) -> Any:
    if isinstance(value, torch.Tensor) and value.ndim and not is_sharded(value):
        model = like(place, value.shape)
        if is_sharded(model) and model.shape == value.shape:
            return divided_as(value, model)
        return value
    if isinstance(value, dict):
        for key, inner in value.items():
            value[key] = _divided(inner, (*place, key), like)
    elif type(value) is list:
        value[:] = [_divided(inner, (*place, index), like) for index, inner in enumerate(value)]
    return value
