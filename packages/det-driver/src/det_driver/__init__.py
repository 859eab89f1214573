"""det-driver runs experiments: the command `det`, store, searches, driver, engines and client."""

from __future__ import annotations

__version__ = "0.1.0"
__all__: tuple[str, ...] = ()
