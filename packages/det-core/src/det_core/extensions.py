"""What plugins add to the configuration, in the form that `det_core.config` takes."""

from __future__ import annotations

from .config import Extensions
from .plugins import Plugins


def extensions_of(plugins: Plugins) -> Extensions:
    """Return the structs of strangers' searchers, storages and settings, by name, each loaded when it is named."""
    return Extensions(
        searchers={r.name: r.config for r in plugins.searchers().values() if r.config is not None},
        storages={r.name: r.config for r in plugins.storages().values() if r.config is not None},
        plugins={r.name: r.config for r in plugins.plugin_configs().values()},
    )
