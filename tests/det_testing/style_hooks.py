"""Registers the other styles of the kit's fake."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from det_core import BackendRecord, Framework, hookimpl
from det_testing import fake_hooks

det_build_model = fake_hooks.det_build_model
det_build_data_loader = fake_hooks.det_build_data_loader

STYLES = {
    "fake-callback": ("CallbackTrial", "CallbackAdapter"),
    "fake-chunked": ("ChunkedTrial", "ChunkedAdapter"),
}


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    for name, (trial, adapter) in STYLES.items():
        load = partial(_named, "tests.det_testing.styles", adapter)
        yield Framework(
            name=name, trial=f"tests:{trial}", load=load, capabilities=fake_hooks.CAPABILITIES
        )


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    for name in STYLES:
        yield BackendRecord(
            name="together", framework=name, load=partial(_named, "det_testing.fakes", "Together")
        )


def _named(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
