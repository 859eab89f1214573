"""Reads the description of tensors that `torch.distributed.checkpoint` writes, without creating
objects that the file names.

torch pickles the description. Here, each torch class in it is replaced by a record class that
stores only its arguments and its state. Names and numbers of the records are checked, and torch's
own objects are made from them. So nothing in the file is called, and the file cannot change
anything outside of the records.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from det_core import CheckpointError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import Metadata

FILE = ".metadata"


class _Refused(Exception):
    """A description that torch does not write. The message says what differs."""


class _Sealed(type):
    """Makes classes that cannot be changed, as pickles may set attributes of classes."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise _Refused("it would change a class")

    def _refuse(cls) -> Any:
        raise _Refused("it would change a class")

    # This applies to the class itself. Objects have their own method of this name.
    __setstate__ = property(_refuse)


class _Record(metaclass=_Sealed):
    """The arguments and the state of an object in the file."""

    __slots__ = ("args", "state")
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: Any) -> _Record:
        """Store the arguments and do nothing else."""
        record = super().__new__(cls)
        record.args, record.state = args, None
        return record

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Whole(_Record):
    """Describes all tensors."""

    __slots__ = ()


class _Tensor(_Record):
    """Describes a tensor."""

    __slots__ = ()


class _Properties(_Record):
    """Holds the dtype of a tensor."""

    __slots__ = ()


class _Chunk(_Record):
    """Describes a part of a tensor that is stored separately."""

    __slots__ = ()


class _Index(_Record):
    """Names a part of a tensor."""

    __slots__ = ()


class _Stored(_Record):
    """Gives the file and the position of a part."""

    __slots__ = ()


class _Size(_Record):
    """Holds a shape."""

    __slots__ = ()


class _Unused(_Record):
    """Replaces objects that are not needed."""

    __slots__ = ()


_CHECKPOINT = "torch.distributed.checkpoint."
_RECORDS: dict[tuple[str, str], type[_Record]] = {
    (f"{_CHECKPOINT}metadata", "Metadata"): _Whole,
    (f"{_CHECKPOINT}metadata", "TensorStorageMetadata"): _Tensor,
    (f"{_CHECKPOINT}metadata", "TensorProperties"): _Properties,
    (f"{_CHECKPOINT}metadata", "ChunkStorageMetadata"): _Chunk,
    (f"{_CHECKPOINT}metadata", "MetadataIndex"): _Index,
    (f"{_CHECKPOINT}filesystem", "_StorageInfo"): _Stored,
    ("torch", "Size"): _Size,
    (f"{_CHECKPOINT}metadata", "BytesStorageMetadata"): _Unused,
    (f"{_CHECKPOINT}metadata", "StorageMeta"): _Unused,
    (f"{_CHECKPOINT}metadata", "_MEM_FORMAT_ENCODING"): _Unused,
    ("torch.serialization", "_get_layout"): _Unused,
    ("pathlib", "PosixPath"): _Unused,
    ("pathlib", "PurePosixPath"): _Unused,
    ("pathlib._local", "PosixPath"): _Unused,
}


class _Unpickler(pickle.Unpickler):
    """Creates records and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECORDS:
            return _RECORDS[module, name]
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and type(found := getattr(torch, name, None)) is torch.dtype:
            return found
        raise _Refused(f"it asks for {module}.{name}")


def read_metadata(file: Path) -> Metadata:
    """Return the description of the tensors in a file's directory.

    Raises CheckpointError if it cannot be trusted.
    """
    try:
        with file.open("rb") as stream:
            return _describe(_Unpickler(stream).load())
    except OSError as error:
        raise CheckpointError(
            f"{file} cannot be read: {error.strerror}; the checkpoint is damaged"
        ) from error
    except _Refused as error:
        raise CheckpointError(
            f"{file} cannot be read safely: {error}; the checkpoint is damaged"
        ) from error
    except Exception as error:
        # A damaged pickle may raise any exception, whose message is about pickle's internals.
        raise CheckpointError(
            f"{file} is not what torch writes; the checkpoint is damaged"
        ) from error


def _describe(whole: Any) -> Metadata:
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    tensors: dict[str, Any] = {}
    for name, each in _dict(_field(whole, _Whole, "state_dict_metadata")).items():
        if type(each) is not _Tensor:
            continue
        properties = _is(_field(each, _Tensor, "properties"), _Properties).state
        dtype = _is(_is(properties, tuple)[0], torch.dtype)
        chunks = [
            ChunkStorageMetadata(
                _size(_field(c, _Chunk, "offsets")), _size(_field(c, _Chunk, "sizes"))
            )
            for c in _is(_field(each, _Tensor, "chunks"), list)
        ]
        size = _size(_field(each, _Tensor, "size"))
        tensors[_is(name, str)] = TensorStorageMetadata(TensorProperties(dtype=dtype), size, chunks)
    stored: dict[Any, Any] = {}
    for index, each in _dict(_field(whole, _Whole, "storage_data")).items():
        # The files of a sharded checkpoint have one folder.
        path = _is(_field(each, _Stored, "relative_path"), str)
        if "/" in path or path in ("", ".", ".."):
            raise _Refused(f"it names {path!r}, which is outside of the checkpoint")
        offset = (
            index.state.get("offset")
            if type(index) is _Index and type(index.state) is dict
            else None
        )
        place = MetadataIndex(
            _is(_field(index, _Index, "fqn"), str), None if offset is None else _size(offset)
        )
        stored[place] = _StorageInfo(
            path, _count(_field(each, _Stored, "offset")), _count(_field(each, _Stored, "length"))
        )
    return Metadata(state_dict_metadata=tensors, storage_data=stored)


def _field(record: Any, kind: type[_Record], name: str) -> Any:
    return _is(_is(record, kind).state, dict)[name]


def _is(value: Any, kind: type) -> Any:
    """Return a value of exactly this type. Subclasses are refused."""
    if type(value) is not kind:
        raise _Refused(
            f"it holds {type(value).__name__.lstrip('_')} where {kind.__name__.lstrip('_')} belongs"
        )
    return value


def _dict(value: Any) -> Any:
    return value if type(value) is OrderedDict else _is(value, dict)


def _count(value: Any) -> int:
    number: int = _is(value, int)
    if number < 0:
        raise _Refused(f"it holds {number} where a position belongs")
    return number


def _size(value: Any) -> torch.Size:
    args = _is(value, _Size).args
    return torch.Size([_count(each) for each in _is(args[0] if args else (), tuple)])
