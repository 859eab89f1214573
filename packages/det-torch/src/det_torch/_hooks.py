"""Registers PyTorch with det; imports det_core only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from det_core import Adapter, Framework, hookimpl


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    yield Framework(
        name="torch",
        trial="det_torch:PyTorchTrial",
        load=_load,
        requires=("torch>=2.6",),
        capabilities=frozenset({"aggregation"}),
        loader="det_torch.load_trial_from_checkpoint_path",
    )


@hookimpl
def det_build_model(context: Any, build: Callable[[], Any]) -> Any:
    return context.place_model(build())


def _load() -> type[Adapter[Any]]:
    from .adapter import TorchAdapter

    return TorchAdapter
