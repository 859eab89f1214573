"""The plugins of one process: found, checked, looked up by name, and called."""

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
