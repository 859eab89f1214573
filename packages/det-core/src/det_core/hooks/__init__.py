"""The plugins of one process: hook specifications, records, and the plugins that are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..support.lazy import lazy

if TYPE_CHECKING:
    from ._found import ENTRY_POINT_GROUP as ENTRY_POINT_GROUP
    from ._found import OURS as OURS
    from ._found import Found as Found
    from ._found import ObserverFailure as ObserverFailure
    from ._found import PluginInfo as PluginInfo
    from ._found import discover as discover
    from .plugins import Plugins as Plugins
    from .plugins import extensions_of as extensions_of

lazy(__name__)
