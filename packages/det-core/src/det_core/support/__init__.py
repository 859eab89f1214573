"""What every part of det stands on: installation, lazy packages, threads, archives, imports."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
