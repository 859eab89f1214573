"""What a checkpoint holds of a trial, and the states of the random generators. Nothing in it needs unpickling."""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from det_core import CheckpointError, TrialError

FILE = "state_dict.pth"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, torch.dtype, torch.device, torch.Size)
_CONTAINERS = (dict, list, tuple, set, collections.OrderedDict, collections.Counter)
_OLD_NAMES = (FILE, "determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt")


def check_plain(value: Any, place: str) -> None:
    """Raise TrialError, naming the place, for a state that could not be read without unpickling."""
    if type(value) in _PLAIN or isinstance(value, torch.Tensor):
        return
    if type(value) not in _CONTAINERS:
        raise TrialError(
            f"{place} is {type(value).__name__}, which a checkpoint cannot hold safely; keep tensors, numbers, text, lists "
            "and dicts in state_dict()"
        )
    if isinstance(value, Mapping):
        for key, inner in value.items():
            check_plain(key, f"a key of {place}")
            check_plain(inner, f"{place}[{key!r}]")
    else:
        for index, inner in enumerate(value):
            check_plain(inner, f"{place}[{index}]")


def save(state: Mapping[str, Any], directory: Path) -> None:
    """Write a state; a full disk is told as torch tells it."""
    try:
        torch.save(dict(state), directory / FILE)
    except RuntimeError as error:
        # torch's zip writer reports what the system refused, without the number of the error
        raise OSError(f"{directory / FILE} could not be written: {error}") from error


def load(directory: Path) -> dict[str, Any]:
    """Read a state, also one that Determined wrote, without unpickling anything but tensors and plain data.

    Raises CheckpointError when there is none, or when it holds other objects.
    """
    file = next((directory / name for name in _OLD_NAMES if (directory / name).exists()), None)
    if file is None:
        raise CheckpointError(f"{directory} holds no {FILE}; name the directory of a checkpoint of a PyTorchTrial")
    try:
        with torch.serialization.safe_globals(_allowed()):
            state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"{file} cannot be read safely: {reason}; a checkpoint must hold tensors and plain data only"
        ) from error
    return _plural(state)


def load_weights(model: torch.nn.Module, weights: Mapping[str, Any]) -> None:
    """Load weights, with or without the prefix that a distributed wrapper adds."""
    names = model.state_dict().keys()
    prefixed = all(name.startswith("module.") for name in weights) and bool(weights)
    if prefixed and not all(name.startswith("module.") for name in names):
        weights = {name.removeprefix("module."): value for name, value in weights.items()}
    elif not prefixed and names and all(name.startswith("module.") for name in names):
        weights = {f"module.{name}": value for name, value in weights.items()}
    model.load_state_dict(dict(weights))


def rng_state() -> dict[str, Any]:
    """Return the states of all global generators, as plain data."""
    state: dict[str, Any] = {
        "cpu_rng_state": torch.random.get_rng_state(),
        "random_rng_state": random.getstate(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        state["np_rng_state"] = [
            name,
            torch.from_numpy(keys.astype("int64")),
            int(position),
            int(has_gauss),
            float(gauss),
        ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["gpu_rng_state"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore what `rng_state` returned, or what Determined saved."""
    torch.random.set_rng_state(state["cpu_rng_state"])
    if "random_rng_state" in state:
        version, keys, gauss = state["random_rng_state"]
        random.setstate((version, tuple(keys), gauss))
    if "np_rng_state" in state:
        import numpy

        name, keys, position, has_gauss, gauss = state["np_rng_state"]
        array = keys.numpy() if isinstance(keys, torch.Tensor) else numpy.asarray(keys)
        numpy.random.set_state((name, array.astype("uint32"), position, has_gauss, gauss))
    if "gpu_rng_state" in state and torch.cuda.is_available():
        saved = state["gpu_rng_state"]
        states = [saved] if isinstance(saved, torch.Tensor) else list(saved)
        torch.cuda.set_rng_state_all(states[: torch.cuda.device_count()])


@contextmanager
def untouched_rng() -> Iterator[None]:
    """Give the generators back as they were, whatever the body draws."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


def _plural(state: dict[str, Any]) -> dict[str, Any]:
    """Bring the keys of the oldest checkpoints into today's form."""
    for old, new in (
        ("model_state_dict", "models_state_dict"),
        ("optimizer_state_dict", "optimizers_state_dict"),
        ("lr_scheduler", "lr_schedulers_state_dict"),
    ):
        if old in state:
            if new in state:
                raise CheckpointError(f"the checkpoint holds both {old!r} and {new!r}; it is damaged")
            value = state.pop(old)
            state[new] = [] if value is None else [value]
    return state


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
