"""Training a trial: the loop, what it asks of an adapter, and what a run is told and tells."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
