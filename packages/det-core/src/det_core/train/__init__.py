"""Training a trial: the loop, what it asks of an adapter, and the messages of a run."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
