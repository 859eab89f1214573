"""PyTorch Lightning for det: its own Trainer under det's schedule, a callback for scripts, and Horovod."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .horovod import HorovodStrategy
    from .load import load_trial_from_checkpoint_path
    from .script import DetCallback, trainer
    from .trial import LightningAdapter, LightningTrialContext

_HOMES = {
    "horovod": ("HorovodStrategy",),
    "load": ("load_trial_from_checkpoint_path",),
    "script": ("DetCallback", "trainer"),
    "trial": ("LightningAdapter", "LightningTrialContext"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "DetCallback",
    "HorovodStrategy",
    "LightningAdapter",
    "LightningTrialContext",
    "load_trial_from_checkpoint_path",
    "trainer",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: the hook module must not import Lightning."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'det_lightning' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
