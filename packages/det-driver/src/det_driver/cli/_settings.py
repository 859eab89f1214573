"""What the command line reads of its environment, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from det_core.plugins import Plugins

    from ..driver import DriverSettings
    from ..store import Store
    from ._observers import ObserverNotes


@dataclass(frozen=True)
class Settings:
    """`home` holds the store; `strict` and `trace` are for authors of plugins."""

    home: Path
    strict: bool
    trace: bool
    environ: Mapping[str, str]

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Settings:
        home = Path(environ.get("DET_HOME") or Path.home() / ".det").expanduser()
        return cls(
            home=home.absolute(),
            strict=environ.get("DET_STRICT_PLUGINS") == "1",
            trace=environ.get("DET_TRACE_PLUGINS") == "1",
            environ=environ,
        )

    @cached_property
    def plugins(self) -> Plugins:
        from det_core.plugins import Plugins

        return Plugins.installed(strict=self.strict, trace=self.trace, failed=self.observers.note)

    @cached_property
    def observers(self) -> ObserverNotes:
        from ._observers import ObserverNotes

        return ObserverNotes(self.home)

    def driver(self, engine: str = "local") -> DriverSettings:
        from ..driver import DriverSettings

        return DriverSettings.detect(self.environ, home=self.home, engine=engine)

    def store(self) -> Store:
        from ..store import Store

        return Store(self.home)

    def reader(self) -> Store:
        from ..store import Store

        return Store.reader(self.home)
