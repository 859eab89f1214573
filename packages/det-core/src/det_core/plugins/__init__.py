"""The plugins of one process: found, checked, looked up by name, and called.

Make one `Plugins` and pass it on; there is none at module level.
"""

from __future__ import annotations

from ._face import Plugins, extensions_of
from ._found import ENTRY_POINT_GROUP, OURS, Found, ObserverFailure, PluginInfo, discover

__all__ = [
    "ENTRY_POINT_GROUP",
    "OURS",
    "Found",
    "ObserverFailure",
    "PluginInfo",
    "Plugins",
    "discover",
    "extensions_of",
]
