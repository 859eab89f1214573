"""What a command is given: what the command line reads of its environment, once, and what observers left in the home."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from det_core.plugins import ObserverFailure, Plugins

    from ..driver import DriverSettings
    from ..store import Store


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


class ObserverNotes:
    """A file for each observer that raised, in the home; it goes when an experiment ends in which the observer did not."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "observer-failures"
        self._failed: set[str] = set()

    def note(self, failure: ObserverFailure) -> None:
        """Keep the first failure of each plugin in this process; a home that cannot be written stops nobody."""
        if failure.plugin in self._failed:
            return
        self._failed.add(failure.plugin)
        text = f"{failure.hook} failed at {time.strftime('%Y-%m-%d %H:%M')}: {failure.message}"
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file(failure.plugin).write_text(text, encoding="utf-8")

    def settle(self, plugins: Plugins) -> None:
        """Forget the failures of observers that were told of this whole experiment without one."""
        for info in plugins.infos:
            if info.name not in self._failed:
                with contextlib.suppress(OSError):
                    self._file(info.name).unlink(missing_ok=True)

    def of(self, plugin: str) -> list[str]:
        """Return what is noted of a plugin."""
        with contextlib.suppress(OSError, ValueError):
            return [self._file(plugin).read_text(encoding="utf-8")]
        return []

    def _file(self, plugin: str) -> Path:
        return self._folder / f"{quote(plugin, safe='')}.txt"
