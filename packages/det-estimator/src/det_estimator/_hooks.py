"""Registers TensorFlow's Estimator with det. Imports det_core only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from det_core import Adapter, Backend, BackendRecord, Framework, hookimpl
from det_core.ranks.backend import available_by

from ._imports import installed, need_tensorflow


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    yield Framework(
        name="estimator",
        trial="det_estimator:EstimatorTrial",
        load=_load,
        requires=("tensorflow>=2.15,<2.16",),
        capabilities=frozenset({"aggregation", "ranks"}),
        loader="det_estimator.load_estimator_from_checkpoint_path",
        tensors="det_estimator.load.tensors",
        exporters={"saved-model": "det_estimator.load.export_saved_model"},
    )


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(
        name="horovod",
        framework="estimator",
        priority=10,
        available=available_by("det_horovod", "tensorflow"),
        load=_load_horovod,
    )
    yield BackendRecord(
        name="sockets",
        framework="estimator",
        available=lambda: installed() is not None,
        load=_load_sockets,
    )


@hookimpl
def det_build_optimizer(context: Any, build: Callable[[], Any]) -> Any:
    return context.place_optimizer(build())


def _load() -> type[Adapter[Any]]:
    need_tensorflow()
    from .adapter import EstimatorAdapter

    return EstimatorAdapter


def _load_horovod() -> type[Backend]:
    need_tensorflow()
    from .horovod import HorovodBackend

    return HorovodBackend


def _load_sockets() -> type[Backend]:
    need_tensorflow()
    from .sockets import Sockets

    return Sockets
