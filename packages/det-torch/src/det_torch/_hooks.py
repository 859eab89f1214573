"""Registers PyTorch with det. This module imports det_core only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from det_core import Adapter, Backend, BackendRecord, Framework, hookimpl
from det_core.ranks.backend import available_by


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    yield Framework(
        name="torch",
        trial="det_torch:PyTorchTrial",
        load=_load,
        requires=("torch>=2.6",),
        capabilities=frozenset({"aggregation", "ranks", "sharding"}),
        loader="det_torch.load_trial_from_checkpoint_path",
        tensors="det_torch.load.tensors",
        exporters={
            "safetensors": "det_torch.exporting.safetensors",
            "torch-export": "det_torch.exporting.torch_export",
            "onnx": "det_torch.exporting.onnx",
        },
    )


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(
        name="horovod",
        framework="torch",
        priority=10,
        available=available_by("det_horovod", "torch"),
        load=_load_horovod,
    )
    yield BackendRecord(name="torch", framework="torch", load=_load_native)


@hookimpl
def det_build_model(context: Any, build: Callable[[], Any]) -> Any:
    return context.place_model(build())


def _load() -> type[Adapter[Any]]:
    from .adapter import TorchAdapter

    return TorchAdapter


def _load_horovod() -> type[Backend]:
    from .backends import HorovodBackend

    return HorovodBackend


def _load_native() -> type[Backend]:
    from .backends import Native

    return Native
