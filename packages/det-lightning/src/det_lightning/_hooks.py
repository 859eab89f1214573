"""Registers Lightning with det. This module imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from det_core import Adapter, Backend, BackendRecord, Framework, hookimpl
from det_core.ranks.backend import available_by


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    yield Framework(
        name="lightning",
        trial="det_lightning:LightningAdapter",
        load=_load,
        requires=("lightning>=2.6,!=2.6.2,!=2.6.3,<2.7",),
        capabilities=frozenset({"aggregation", "ranks", "sharding"}),
        loader="det_lightning.load_trial_from_checkpoint_path",
        tensors="det_lightning.load.tensors",
        exporters={
            "safetensors": "det_lightning.exporting.safetensors",
            "torch-export": "det_lightning.exporting.torch_export",
            "onnx": "det_lightning.exporting.onnx",
        },
    )


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(
        name="horovod",
        framework="lightning",
        priority=10,
        available=available_by("det_horovod", "torch"),
        load=_load_horovod,
    )
    yield BackendRecord(name="torch", framework="lightning", load=_load_native)


def _load() -> type[Adapter[Any]]:
    from .adapter import TrainerAdapter

    return TrainerAdapter


def _load_horovod() -> type[Backend]:
    from det_torch.backends import HorovodBackend

    return HorovodBackend


def _load_native() -> type[Backend]:
    from det_torch.backends import Native

    return Native
