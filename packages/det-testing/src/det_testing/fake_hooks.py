"""The hooks of the kit's fake plugin. Like those of every plugin they import little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from det_core import BackendRecord, Framework, hookimpl

CAPABILITIES = frozenset({"aggregation", "ranks"})


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    load = partial(_fake, "OwnedAdapter")
    yield Framework(
        name="fake-owned", trial="det_testing:OwnedTrial", load=load, capabilities=CAPABILITIES
    )


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(name="together", framework="fake-owned", load=partial(_fake, "Together"))


@hookimpl
def det_build_model(build: Callable[[], Any]) -> Any:
    return build()


@hookimpl
def det_build_data_loader(build: Callable[[], Any]) -> Any:
    return build()


def _fake(name: str) -> Any:
    from . import fakes

    return getattr(fakes, name)
