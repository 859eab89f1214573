"""The hooks of the kit's three fakes: as light as every plugin's, though nothing here is heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from det_core import Adapter, Framework, hookimpl

CAPABILITIES = frozenset({"aggregation"})


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    for name, trial, adapter in (
        ("fake-owned", "OwnedTrial", "OwnedAdapter"),
        ("fake-callback", "CallbackTrial", "CallbackAdapter"),
        ("fake-chunked", "ChunkedTrial", "ChunkedAdapter"),
    ):
        yield Framework(name=name, trial=f"det_core:{trial}", load=_loader(adapter), capabilities=CAPABILITIES)


@hookimpl
def det_build_model(build: Callable[[], Any]) -> Any:
    return build()


@hookimpl
def det_build_data_loader(build: Callable[[], Any]) -> Any:
    return build()


def _loader(name: str) -> Callable[[], type[Adapter[Any]]]:
    def load() -> type[Adapter[Any]]:
        from . import fakes

        adapter: type[Adapter[Any]] = getattr(fakes, name)
        return adapter

    return load
