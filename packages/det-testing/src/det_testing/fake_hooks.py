"""The hooks of the kit's three fakes: as light as every plugin's, though nothing here is heavy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from det_core import BackendRecord, Framework, hookimpl

CAPABILITIES = frozenset({"aggregation", "ranks"})
FRAMEWORKS = (
    ("fake-owned", "OwnedTrial", "OwnedAdapter"),
    ("fake-callback", "CallbackTrial", "CallbackAdapter"),
    ("fake-chunked", "ChunkedTrial", "ChunkedAdapter"),
)


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    for name, trial, adapter in FRAMEWORKS:
        yield Framework(
            name=name, trial=f"det_testing:{trial}", load=partial(_fake, adapter), capabilities=CAPABILITIES
        )


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    for name, _, _ in FRAMEWORKS:
        yield BackendRecord(name="together", framework=name, load=partial(_fake, "Together"))


@hookimpl
def det_build_model(build: Callable[[], Any]) -> Any:
    return build()


@hookimpl
def det_build_data_loader(build: Callable[[], Any]) -> Any:
    return build()


def _fake(name: str) -> Any:
    from . import fakes

    return getattr(fakes, name)
