"""Registers JAX with det; imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from det_core import Adapter, Backend, BackendRecord, Framework, hookimpl


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    yield Framework(
        name="jax",
        trial="det_jax:JaxTrial",
        load=_adapter,
        requires=("jax>=0.7", "optax>=0.2"),
        capabilities=frozenset({"aggregation", "ranks"}),
    )


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(
        name="jax", framework="jax", load=_backend, available=lambda: find_spec("jax") is not None
    )


def _adapter() -> type[Adapter[Any]]:
    from .adapter import JaxAdapter

    return JaxAdapter


def _backend() -> type[Backend]:
    from .backend import JaxBackend

    return JaxBackend
