"""What trials write for TensorBoard by themselves."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
