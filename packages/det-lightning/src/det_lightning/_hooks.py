"""Registers Lightning with det; imports det_core only."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from det_core import Adapter, Framework, hookimpl


@hookimpl
def det_frameworks() -> Iterator[Framework]:
    yield Framework(
        name="lightning",
        trial="det_lightning:LightningAdapter",
        load=_load,
        requires=("lightning>=2.6,!=2.6.2,!=2.6.3,<2.7",),
        capabilities=frozenset({"aggregation"}),
        loader="det_lightning.load_trial_from_checkpoint_path",
    )


def _load() -> type[Adapter]:
    from .adapter import TrainerAdapter

    return TrainerAdapter
