"""Launchers under the names that entrypoints give: `python3 -m determined.launch.torch_distributed -- python3 train.py`."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
