"""Python's and NumPy's global random generators, which every framework's checkpoint holds."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def seed_host(seed: int) -> None:
    """Seed Python's generator, and NumPy's where something has imported it."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def host_rng() -> dict[str, Any]:
    """Return the states in the generators' own form. NumPy's only if something has imported it."""
    numpy = sys.modules.get("numpy")
    return {"python": random.getstate()} | (
        {} if numpy is None else {"numpy": numpy.random.get_state()}
    )


def plain_host_rng() -> dict[str, Any]:
    """Return the states as lists of numbers and text, which any format can hold."""
    (version, numbers, gauss), numpy = random.getstate(), host_rng().get("numpy")
    plain: dict[str, Any] = {"python": [version, list(numbers), gauss]}
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy
        plain["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
    return plain


def set_host_rng(states: Mapping[str, Any]) -> None:
    """Restore either form of the states. Their numbers may be in any kind of array or tensor."""
    if "python" in states:
        version, numbers, gauss = states["python"]
        random.setstate(
            (version, tuple(numbers.tolist() if hasattr(numbers, "tolist") else numbers), gauss)
        )
    if "numpy" in states:
        numpy = import_module("numpy")
        name, keys, position, has_gauss, cached = states["numpy"]
        keys = numpy.asarray(keys, dtype=numpy.uint32)
        numpy.random.set_state((name, keys, int(position), int(has_gauss), float(cached)))


@contextmanager
def untouched_host_rng() -> Iterator[None]:
    """Restore the generators' states when the body ends."""
    states = host_rng()
    try:
        yield
    finally:
        set_host_rng(states)
