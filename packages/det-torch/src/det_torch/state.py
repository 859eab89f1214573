"""Reads and writes the file of a checkpoint that holds a trial's state.

Nothing in it needs unpickling.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from det_core import CheckpointError, TrialError
from det_core.support.archives import check_zip

from .arrays import decode_numpy, encode_numpy, is_numpy
from .sharding import Like, fill, whole
from .structure import make_buffers

FILE = "state_dict.pth"
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.Tensor,
    torch.dtype,
    torch.device,
    torch.Size,
)
_CONTAINERS = (dict, list, tuple, set, collections.OrderedDict, collections.Counter)
_OLD_FILES = (FILE, "determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt")
_UNPICKLER = "WeightsUnpickler error:"
_OLD_KEYS = {
    "model_state_dict": "models_state_dict",
    "optimizer_state_dict": "optimizers_state_dict",
    "lr_scheduler": "lr_schedulers_state_dict",
}


def is_plain(value: Any) -> bool:
    """Return whether a value that is not a container can be read without unpickling."""
    return type(value) in _PLAIN or isinstance(value, torch.Tensor)


def check_plain(value: Any, place: str, owner: str, numpy: bool = False) -> None:
    """Raise TrialError, which names place and owner, for a state that could not be read without
    unpickling.

    With `numpy` the state may hold NumPy's numbers and arrays, as `save` encodes them.
    """
    if is_plain(value) or (numpy and is_numpy(value)):
        return
    if type(value) not in _CONTAINERS:
        raise TrialError(
            f"{place} of {owner} is {type(value).__name__}, which a checkpoint cannot hold safely;"
            " keep tensors, numbers, text, lists and dicts there"
        )
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_plain(key, f"a key in {place}", owner, numpy)
            check_plain(inner, f"{place}[{key!r}]", owner, numpy)
    else:
        for index, inner in enumerate(value):
            check_plain(inner, f"{place}[{index}]", owner, numpy)


def check(contents: Mapping[str, Any]) -> None:
    """Raise TrialError for contents that could not be read without unpickling."""
    for key, value in contents.items():
        if key == "callbacks":
            for name, of_callback in value.items():
                check_plain(of_callback, "state_dict()", f"the callback {name!r}", numpy=True)
        else:
            check_plain(value, f"[{key!r}]", "the checkpoint", numpy=True)


def save(contents: Mapping[str, Any], directory: Path) -> None:
    """Write the contents of a checkpoint.

    Raises OSError if the system refuses, for example on a full disk.
    """
    try:
        torch.save(encode_numpy(dict(contents)), directory / FILE)
    except RuntimeError as error:
        # torch's zip writer reports the system's error without its number.
        raise OSError(f"{directory / FILE} could not be written: {error}") from error


def load(directory: Path, like: Like | None = None) -> dict[str, Any]:
    """Read contents, also those that Determined wrote. Only tensors and plain data are unpickled.

    Sharded tensors are put together. With `like` they are sharded again like the tensors that it
    returns.

    Raises CheckpointError if there are no contents, or if they hold other objects.
    """
    file = next((directory / name for name in _OLD_FILES if (directory / name).exists()), None)
    if file is None:
        raise CheckpointError(
            f"{directory} holds no {FILE}; name the directory of a checkpoint of a PyTorchTrial"
        )
    try:
        check_zip(file)
        with torch.serialization.safe_globals(_allowed()):
            contents: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{file} cannot be read safely: {_reason(error)}; a checkpoint must hold tensors and"
            " plain data only"
        ) from error
    if type(contents) is not dict:
        raise CheckpointError(
            f"{file} holds {type(contents).__name__}, not a trial's state; the checkpoint is"
            " damaged"
        )
    contents = _plural(decode_numpy(contents))
    return whole(contents, directory) if like is None else fill(contents, directory, like)


def _reason(error: Exception) -> str:
    """Return what is wrong with a file, without torch's advice to load it anyway."""
    lines = str(error).splitlines() or [type(error).__name__]
    reason = next((line for line in lines if _UNPICKLER in line), lines[0])
    return reason.rpartition(_UNPICKLER)[2].strip().partition(". ")[0]


def load_weights(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    """Load weights, with or without the prefix that a distributed wrapper adds.

    Buffers that the model has yet to make are made.

    The versions of modules are an attribute of the state and are passed on. Hooks that load older
    states use them.
    """
    names = model.state_dict().keys()
    versions: dict[str, Any] | None = getattr(weights, "_metadata", None)
    prefixed = all(name.startswith("module.") for name in weights) and bool(weights)
    if prefixed and not all(name.startswith("module.") for name in names):
        weights = {name.removeprefix("module."): value for name, value in weights.items()}
        if versions is not None:
            below = ((name, version) for name, version in versions.items() if name)
            versions = {
                name.removeprefix("module").removeprefix("."): version for name, version in below
            }
    elif not prefixed and names and all(name.startswith("module.") for name in names):
        weights = {f"module.{name}": value for name, value in weights.items()}
        if versions is not None:
            versions = {f"module.{name}".rstrip("."): version for name, version in versions.items()}
    state: collections.OrderedDict[str, Any] = collections.OrderedDict(weights)
    if versions is not None:
        state._metadata = versions  # type: ignore[attr-defined]
    make_buffers(model, state)
    model.load_state_dict(state)


def _plural(contents: dict[str, Any]) -> dict[str, Any]:
    """Rename the keys of the oldest checkpoints to the current ones."""
    for old, new in _OLD_KEYS.items():
        if old in contents:
            if new in contents:
                raise CheckpointError(
                    f"the checkpoint holds both {old!r} and {new!r}; it is damaged"
                )
            value = contents.pop(old)
            contents[new] = [] if value is None else [value]
    return contents


def _allowed() -> list[Any]:
    """Return the types that checkpoints hold besides tensors: empty bytes, containers, and in old
    ones arrays of NumPy's generator.
    """
    allowed: list[Any] = [
        bytes,
        collections.Counter,
        collections.OrderedDict,
        collections.defaultdict,
    ]
    try:
        import numpy
    except ImportError:
        return allowed
    multiarray = getattr(numpy, "_core", None) or numpy.core
    allowed += [
        multiarray.multiarray._reconstruct,
        numpy.ndarray,
        numpy.dtype,
        type(numpy.dtype(numpy.uint32)),
    ]
    return [*allowed, (multiarray.multiarray._reconstruct, "numpy.core.multiarray._reconstruct")]
