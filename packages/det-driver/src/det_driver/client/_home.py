"""The store that a client looks into, opened anew for each question, so that nothing is kept open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from det_core.plugins import Plugins

from ..store import Store


@dataclass(frozen=True)
class Home:
    """The directory of a store, with what is installed beside it, and the environment for drivers that are started."""

    path: Path
    environ: Mapping[str, str]

    @cached_property
    def plugins(self) -> Plugins:
        """The installed plugins."""
        return Plugins.installed()

    def reader(self) -> Store:
        """Open the store to read; StoreError where there is none."""
        return Store.reader(self.path)

    def writer(self) -> Store:
        """Open the store to write; it is made where there is none."""
        return Store(self.path)
