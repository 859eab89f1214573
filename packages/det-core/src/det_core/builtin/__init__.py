"""What det-core brings itself, registered through the hooks that strangers use."""

from __future__ import annotations

from collections.abc import Iterator

from . import backends, engines, launchers, searchers, storages
from .tensorboard import TensorBoard

__all__ = ["builtins"]


def builtins() -> Iterator[tuple[str, object]]:
    """Yield each built-in plugin with its name."""
    yield "backends", backends
    yield "engines", engines
    yield "launchers", launchers
    yield "searchers", searchers
    yield "storages", storages
    yield "tensorboard", TensorBoard()
