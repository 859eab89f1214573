"""The file of a checkpoint that holds a trial. Nothing in it needs unpickling."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from det_core import CheckpointError, TrialError

from .sharding import Like, fill, whole

FILE = "state_dict.pth"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device, torch.Size)
_CONTAINERS = (dict, list, tuple, set, collections.OrderedDict, collections.Counter)
_OLD_FILES = (FILE, "determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt")
_UNPICKLER = "WeightsUnpickler error:"
_OLD_KEYS = {
    "model_state_dict": "models_state_dict",
    "optimizer_state_dict": "optimizers_state_dict",
    "lr_scheduler": "lr_schedulers_state_dict",
}


def is_plain(value: Any) -> bool:
    """Return whether a value that holds no others can be read without unpickling."""
    return type(value) in _PLAIN or isinstance(value, torch.Tensor)


def check_plain(value: Any, place: str, owner: str) -> None:
    """Raise TrialError, naming place and owner, for a state that could not be read without unpickling."""
    if is_plain(value):
        return
    if type(value) not in _CONTAINERS:
        raise TrialError(
            f"{place} of {owner} is {type(value).__name__}, which a checkpoint cannot hold safely; keep tensors, numbers, "
            "text, lists and dicts there"
        )
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_plain(key, f"a key in {place}", owner)
            check_plain(inner, f"{place}[{key!r}]", owner)
    else:
        for index, inner in enumerate(value):
            check_plain(inner, f"{place}[{index}]", owner)


def check(contents: Mapping[str, Any]) -> None:
    """Raise TrialError for contents that could not be read without unpickling."""
    for key, value in contents.items():
        if key == "callbacks":
            for name, of_callback in value.items():
                check_plain(of_callback, "state_dict()", f"the callback {name!r}")
        else:
            check_plain(value, f"[{key!r}]", "the checkpoint")


def save(contents: Mapping[str, Any], directory: Path) -> None:
    """Write the contents of a checkpoint. Raises OSError where the system refuses, as on a full disk."""
    try:
        torch.save(dict(contents), directory / FILE)
    except RuntimeError as error:
        # torch's zip writer reports what the system refused, without the number of the error
        raise OSError(f"{directory / FILE} could not be written: {error}") from error


def load(directory: Path, like: Like | None = None) -> dict[str, Any]:
    """Read contents, also those that Determined wrote, without unpickling anything but tensors and plain data.

    What was divided among ranks is put together, or divided again as what it is `like`.

    Raises CheckpointError when there are none, or when they hold other objects.
    """
    file = next((directory / name for name in _OLD_FILES if (directory / name).exists()), None)
    if file is None:
        raise CheckpointError(f"{directory} holds no {FILE}; name the directory of a checkpoint of a PyTorchTrial")
    try:
        with torch.serialization.safe_globals(_allowed()):
            contents: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{file} cannot be read safely: {_reason(error)}; a checkpoint must hold tensors and plain data only"
        ) from error
    contents = _plural(contents)
    return whole(contents, directory) if like is None else fill(contents, directory, like)


def _reason(error: Exception) -> str:
    """Return what is wrong with a file, without torch's advice to load it all the same."""
    lines = str(error).splitlines() or [type(error).__name__]
    told = next((line for line in lines if _UNPICKLER in line), lines[0])
    return told.rpartition(_UNPICKLER)[2].strip().partition(". ")[0]


def load_weights(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    """Load weights, with or without the prefix that a distributed wrapper adds."""
    names = model.state_dict().keys()
    prefixed = all(name.startswith("module.") for name in weights) and bool(weights)
    if prefixed and not all(name.startswith("module.") for name in names):
        weights = {name.removeprefix("module."): value for name, value in weights.items()}
    elif not prefixed and names and all(name.startswith("module.") for name in names):
        weights = {f"module.{name}": value for name, value in weights.items()}
    model.load_state_dict(dict(weights))


def _plural(contents: dict[str, Any]) -> dict[str, Any]:
    """Bring the keys of the oldest checkpoints into today's form."""
    for old, new in _OLD_KEYS.items():
        if old in contents:
            if new in contents:
                raise CheckpointError(f"the checkpoint holds both {old!r} and {new!r}; it is damaged")
            value = contents.pop(old)
            contents[new] = [] if value is None else [value]
    return contents


def _allowed() -> list[Any]:
    """What old checkpoints hold beside tensors: the arrays of NumPy's generator, and counters of schedulers."""
    allowed: list[Any] = [collections.Counter, collections.OrderedDict, collections.defaultdict]
    try:
        import numpy
    except ImportError:
        return allowed
    multiarray = getattr(numpy, "_core", None) or numpy.core
    allowed += [multiarray.multiarray._reconstruct, numpy.ndarray, numpy.dtype, type(numpy.dtype(numpy.uint32))]
    return [*allowed, (multiarray.multiarray._reconstruct, "numpy.core.multiarray._reconstruct")]
