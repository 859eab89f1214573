"""Registers Keras with det; imports det_core only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from det_core import Adapter, Backend, BackendRecord, Framework, PluginError, hookimpl
from det_core.backend import available_by


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
    yield BackendRecord(name="collectives", framework="keras", available=has_tensorflow, load=_load_native)
    # for scripts, by DistributedContext.from_tf_config(): it serves no framework's trials
    yield BackendRecord(name="tensorflow", load=_load_tf_config, available=has_tensorflow, priority=100)


@hookimpl
def det_build_model(context: Any, build: Callable[[], Any]) -> Any:
    return context.place_model(build())


@hookimpl
def det_build_optimizer(context: Any, build: Callable[[], Any]) -> Any:
    return context.place_optimizer(build())


def has_tensorflow() -> bool:
    """Tell whether there is a TensorFlow, without importing it."""
    return find_spec("tensorflow") is not None


def need_tensorflow() -> None:
    """Raise PluginError, with both ways to install it, where there is no TensorFlow."""
    if not has_tensorflow():
        raise PluginError(
            "det-keras needs TensorFlow, which is not installed; with a GPU: pip install 'det-keras[tensorflow]', "
            "without one: pip install 'det-keras[cpu]'"
        )


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
