"""Registers Keras with det. Imports det_core only."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from det_core import Adapter, Backend, BackendRecord, Framework, PluginError, hookimpl
from det_core.ranks.backend import available_by
from det_core.support.installation import how_to_install


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    yield Framework(
        name="keras",
        trial="det_keras:TFKerasTrial",
        load=_load,
        requires=("keras>=2.15",),
        capabilities=frozenset({"aggregation", "ranks"}),
        loader="det_keras.load_model_from_checkpoint_path",
        tensors="det_keras.load.tensors",
        exporters={
            "keras": "det_keras.exporting.keras_file",
            "saved-model": "det_keras.exporting.saved_model",
        },
    )


@hookimpl
def det_backends() -> Iterator[BackendRecord]:
    yield BackendRecord(
        name="horovod",
        framework="keras",
        priority=10,
        available=available_by("det_horovod", "tensorflow"),
        load=_load_horovod,
    )
    yield BackendRecord(
        name="collectives", framework="keras", available=has_tensorflow, load=_load_native
    )
    # For scripts only, by DistributedContext.from_tf_config().
    yield BackendRecord(
        name="tensorflow", load=_load_tf_config, available=has_tensorflow, priority=100
    )


@hookimpl
def det_build_model(context: Any, build: Callable[[], Any]) -> Any:
    return context.place_model(build())


@hookimpl
def det_build_optimizer(context: Any, build: Callable[[], Any]) -> Any:
    return context.place_optimizer(build())


def has_tensorflow() -> bool:
    """Return whether TensorFlow is installed, without importing it."""
    return find_spec("tensorflow") is not None


def need_tensorflow() -> None:
    """Raise PluginError, with both ways to install it, if TensorFlow is not installed."""
    if has_tensorflow():
        return
    way = (
        f"with a GPU: {how_to_install('det-keras', 'tensorflow')}, without one:"
        f" {how_to_install('det-keras', 'cpu')}"
    )
    backend = os.environ.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        raise PluginError(
            f"KERAS_BACKEND is {backend!r}, but det-keras trains Keras on TensorFlow only, and that"
            f" is not installed; set KERAS_BACKEND=tensorflow, and {way}"
        )
    raise PluginError(f"det-keras needs TensorFlow, which is not installed; {way}")


def _load() -> type[Adapter[Any]]:
    need_tensorflow()
    from .adapter import KerasAdapter

    return KerasAdapter


def _load_tf_config() -> type[Backend]:
    from .backends.tf_config import TFConfig

    return TFConfig


def _load_horovod() -> type[Backend]:
    from .backends import HorovodBackend

    return HorovodBackend


def _load_native() -> type[Backend]:
    from .backends import Native

    return Native
