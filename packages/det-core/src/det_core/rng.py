"""Python's and NumPy's global random generators, as every framework's checkpoint holds them."""

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
    """Return the states as the generators give them; that of NumPy only where something has imported it."""
    numpy = sys.modules.get("numpy")
    return {"python": random.getstate()} | ({} if numpy is None else {"numpy": numpy.random.get_state()})


def plain_host_rng() -> dict[str, Any]:
    """Return the states as lists of numbers and text, which any format can hold."""
    (version, numbers, gauss), numpy = random.getstate(), host_rng().get("numpy")
    plain: dict[str, Any] = {"python": [version, list(numbers), gauss]}
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy
        plain["numpy"] = [name, keys.tolist(), int(position), int(has_gauss), float(cached)]
    return plain


def set_host_rng(states: Mapping[str, Any]) -> None:
    """Restore either form of the states; the many numbers in them may be of any array's or tensor's kind."""
    if "python" in states:
        version, numbers, gauss = states["python"]
        random.setstate((version, tuple(numbers.tolist() if hasattr(numbers, "tolist") else numbers), gauss))
    if "numpy" in states:
        numpy = import_module("numpy")
        name, keys, position, has_gauss, cached = states["numpy"]
        keys = numpy.asarray(keys, dtype=numpy.uint32)
        numpy.random.set_state((name, keys, int(position), int(has_gauss), float(cached)))


@contextmanager
def untouched_host_rng() -> Iterator[None]:
    """Give the generators back as they were, whatever the body draws."""
    states = host_rng()
    try:
        yield
    finally:
        set_host_rng(states)
