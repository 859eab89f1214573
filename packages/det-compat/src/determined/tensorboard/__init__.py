"""Writers with which trials log to TensorBoard themselves."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
