"""What Determined's examples took from its `util`."""

from __future__ import annotations

from det_core import import_from_path

__all__ = ["import_from_path"]
