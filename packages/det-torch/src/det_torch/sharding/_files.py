"""The parts of sharded tensors in a checkpoint, written and read by `torch.distributed.checkpoint`.

Its files are the ones that torch's own tools read (`dcp_to_torch_save`), but nothing that they hold is unpickled here, other
than the few plain classes that describe them.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from det_core import CheckpointError

from ._tensors import is_sharded
from ._tensors import like as divided_as

FOLDER = "shards"
KEY = "sharded"
_METADATA = ".metadata"
_MODULE = "torch.distributed.checkpoint."
_KNOWN = {
    f"{_MODULE}metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    f"{_MODULE}filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}

Place = tuple[Any, ...]
Like = Callable[[Place, torch.Size], Any]
"""The tensor of the running trial that has a place in the checkpoint, or one that it goes with; None where there is none."""


def write(contents: dict[str, Any], directory: Path | None) -> dict[str, Any]:
    """Write this rank's parts of sharded tensors; return what is left, in which `KEY` says where they belong.

    Every rank calls it, with tensors in the same places.
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
        found[name] = _settled(value.detach())
        facts[name] = {"place": list(place), "dims": [p.dim if p.is_shard() else None for p in found[name].placements]}
        return None
    if isinstance(value, dict):
        same = copy.copy(value)  # a state's attributes are kept
        for key, inner in value.items():
            same[key] = _without(inner, (*place, key), found, facts)
        return same
    if type(value) in (list, tuple):
        return type(value)(_without(inner, (*place, index), found, facts) for index, inner in enumerate(value))
    return value


def _settled(value: Any) -> Any:
    """Return a tensor whose parts are values and not summands."""
    from torch.distributed.tensor import Replicate

    if not any(placement.is_partial() for placement in value.placements):
        return value
    return value.redistribute(placements=[Replicate() if p.is_partial() else p for p in value.placements])


def _write(tensors: dict[str, Any], directory: Path) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(tensors, storage_writer=FileSystemWriter(directory / FOLDER))
    except (RuntimeError, CheckpointException) as error:
        raise OSError(f"{directory / FOLDER} could not be written: {error}") from error


def whole(contents: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Put sharded tensors back into contents, in one piece each; no other rank is needed."""
    return fill(contents, directory, lambda place, size: None)


def fill(contents: dict[str, Any], directory: Path, like: Like) -> dict[str, Any]:
    """Put sharded tensors back into contents, each divided as what it is `like`; divide what was saved whole, where that is."""
    facts = contents.pop(KEY, {})
    if facts:
        wanted, metadata = {}, _read_metadata(directory / FOLDER / _METADATA)
        for name, fact in facts.items():
            described = metadata.state_dict_metadata.get(name)
            if type(described).__name__ != "TensorStorageMetadata":
                raise CheckpointError(f"{directory / FOLDER} holds no tensor {name!r}; the checkpoint is damaged")
            wanted[name] = _empty(fact, described, like(tuple(fact["place"]), described.size))
        _read(wanted, metadata, directory / FOLDER)
        for name, fact in facts.items():
            _put(contents, fact["place"], wanted[name])
    return _divided(contents, (), like)  # type: ignore[no-any-return]


def _empty(fact: Mapping[str, Any], described: Any, model: Any) -> Any:
    """Return room for a tensor."""
    size, dtype = described.size, described.properties.dtype
    if not is_sharded(model):
        return torch.empty(size, dtype=dtype)
    from torch.distributed.tensor import Replicate, Shard, empty

    placements = model.placements
    if model.shape != size:
        dims = fact["dims"] if len(fact["dims"]) == len(placements) else [None] * len(placements)
        placements = [Replicate() if dim is None else Shard(dim) for dim in dims]
    return empty(size, dtype=dtype, device_mesh=model.device_mesh, placements=placements)


def _read_metadata(file: Path) -> Any:
    try:
        with file.open("rb") as stream:
            metadata = _Unpickler(stream).load()
        outside = [i.relative_path for i in metadata.storage_data.values() if "/" in i.relative_path]
    except (OSError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{file} cannot be read safely: {error}; the checkpoint is damaged") from error
    if outside:
        raise CheckpointError(f"{file} names {outside[0]!r}, which is outside of the checkpoint; it is damaged")
    return metadata


class _Unpickler(pickle.Unpickler):
    """Makes what describes tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _KNOWN.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _read(wanted: dict[str, Any], metadata: Any, folder: Path) -> None:
    """Read what this rank needs, without the others: one that fails lets nobody wait."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    reader, planner = FileSystemReader(folder), DefaultLoadPlanner()
    planner.set_up_planner(wanted, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    plan = planner.finish_plan(planner.create_global_plan([plan])[0])
    try:
        reader.read_data(plan, planner).wait()
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"{folder} cannot be read: {error}; the checkpoint is damaged") from error


def _put(contents: Any, place: Sequence[Any], value: Any) -> None:
    """Set a place in nested containers, of which tuples are made anew."""
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
