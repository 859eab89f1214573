"""The ranks of a run: what a backend and a launcher are, and how objects go from rank to rank."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
