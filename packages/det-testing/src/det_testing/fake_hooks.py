"""The hooks of the kit's three fakes: as light as every plugin's, though nothing here is heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from det_core import Adapter, Backend, BackendRecord, Framework, hookimpl

CAPABILITIES = frozenset({"aggregation", "ranks"})
FRAMEWORKS = (
    ("fake-owned", "OwnedTrial", "OwnedAdapter"),
    ("fake-callback", "CallbackTrial", "CallbackAdapter"),
    ("fake-chunked", "ChunkedTrial", "ChunkedAdapter"),
)


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    for name, trial, adapter in FRAMEWORKS:
        yield Framework(name=name, trial=f"det_testing:{trial}", load=_loader(adapter), capabilities=CAPABILITIES)


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    for name, _, _ in FRAMEWORKS:
        yield BackendRecord(name="together", framework=name, load=_together)


@hookimpl
def det_build_model(build: Callable[[], Any]) -> Any:
    return build()


@hookimpl
def det_build_data_loader(build: Callable[[], Any]) -> Any:
    return build()


def _together() -> type[Backend]:
    from .fakes import Together

    return Together


def _loader(name: str) -> Callable[[], type[Adapter[Any]]]:
    def load() -> type[Adapter[Any]]:
        from . import fakes

        adapter: type[Adapter[Any]] = getattr(fakes, name)
        return adapter

    return load
