"""Registers Keras with det; imports det_core only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from det_core import Adapter, Framework, hookimpl

from ._imports import need_tensorflow


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    yield Framework(
        name="keras",
        trial="det_keras:TFKerasTrial",
        load=_load,
        requires=("keras>=2.15",),
        capabilities=frozenset({"aggregation"}),
        loader="det_keras.load_model_from_checkpoint_path",
    )


@hookimpl
def det_build_model(context: Any, build: Callable[[], Any]) -> Any:
    return context.place_model(build())


@hookimpl
def det_build_optimizer(context: Any, build: Callable[[], Any]) -> Any:
    return context.place_optimizer(build())


def _load() -> type[Adapter[Any]]:
    need_tensorflow()
    from .adapter import KerasAdapter

    return KerasAdapter
