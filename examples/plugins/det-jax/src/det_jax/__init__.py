"""JAX for det: a trial is a pure loss, an optax optimizer and arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from .data import ArrayData as ArrayData
    from .trial import JaxTrial as JaxTrial

__version__ = "0.1.0"

lazy(__name__)
