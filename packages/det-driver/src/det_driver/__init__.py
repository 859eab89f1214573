"""det-driver: what runs experiments: the command `det`, the store, searches, the driver, engines, the client."""

from __future__ import annotations

__version__ = "0.1.0"
__all__: tuple[str, ...] = ()
