"""Registers the adapter with a fault that the environment names.

Ranks, which are processes of their own, find it too.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

from det_core import Adapter, Backend, BackendRecord, Framework, hookimpl
from det_testing import fake_hooks

det_build_model = fake_hooks.det_build_model
det_build_data_loader = fake_hooks.det_build_data_loader


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    yield Framework(
        name="faulty",
        trial="det_testing:OwnedTrial",
        load=_planted,
        capabilities=frozenset({"aggregation", "ranks"}),
    )


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(name="together", framework="faulty", load=_together)


def _planted() -> type[Adapter[Any]]:
    adapter: type[Adapter[Any]] = getattr(
        importlib.import_module("tests.det_testing.faults"), os.environ["PLANTED"]
    )
    return adapter


def _together() -> type[Backend]:
    from det_testing.fakes import Together

    return Together
