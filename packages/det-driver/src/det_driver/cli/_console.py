"""A command's console: the settings that it is given, read from the environment once, and how it prints."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from det_core.errors import DetError

if TYPE_CHECKING:
    from det_core.plugins import ObserverFailure, Plugins

    from ..client import Client
    from ..driver import DriverSettings
    from ..store import Store

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def _completing(listed: Callable[[Store, click.Context], Iterable[tuple[object, str]]]) -> Callable[..., list[Any]]:
    """Return what completes an argument in the shell: values of the store that begin so, each with a word on it."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        try:
            with Settings.read(os.environ).reader() as store:
                found = [(str(value), word) for value, word in listed(store, context)]
        except DetError:
            return []
        return [CompletionItem(value, help=word) for value, word in found if value.startswith(incomplete)]

    return complete


def _experiments(store: Store, context: click.Context) -> Iterable[tuple[object, str]]:
    rows = [summary.experiment for summary in store.experiments.list(archived=None)]
    return ((row.id, f"{row.name} ({row.state.lower()})") for row in rows)


def _trials(store: Store, context: click.Context) -> Iterable[tuple[object, str]]:
    # While the value of --trial is typed, click has not come to the argument yet.
    experiment = context.params.get("experiment") or next((int(each) for each in context.args if each.isdigit()), None)
    trials = store.trials.list(experiment) if experiment else []
    return ((trial.id, trial.state.lower()) for trial in trials)


def _checkpoints(store: Store, context: click.Context) -> Iterable[tuple[object, str]]:
    for summary in store.experiments.list(archived=None):
        for row in store.checkpoints.list(experiment_id=summary.experiment.id):
            yield row.uuid, f"trial {row.trial_id}, batch {row.batches} ({row.state.lower()})"


EXPERIMENTS, TRIALS, CHECKPOINTS = map(_completing, (_experiments, _trials, _checkpoints))


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

    @property
    def defaults(self) -> Path | None:
        """The configuration that lies under every other, where there is one."""
        return path if (path := self.home / "config.yaml").is_file() else None

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

    def client(self) -> Client:
        from ..client import Client

        return Client(self.home)

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
        from urllib.parse import quote

        return self._folder / f"{quote(plugin, safe='')}.txt"


def print_json(value: Any) -> None:
    """Print one JSON value on one line; numbers that JSON has not are text: "NaN", "Infinity", "-Infinity"."""
    import json

    try:
        text = json.dumps(value, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), default=str, allow_nan=False)
    sys.stdout.write(text + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, as wide as the terminal; columns of numbers are right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], (int, float)) or row[index] is None for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table)


def optional(module: str, what: str) -> Any:
    """Import a module that det does without; DetError, which begins with `what`, where its package is not installed."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(package):
            raise
        raise DetError(f"{what} with {package}, which is not installed; pip install {package}") from None


def shown(value: Any) -> str:
    """Return a cell's text: numbers short, None as nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "  ".join(f"{key}={shown(inner)}" for key, inner in value.items())
    return str(value)


def ago(seconds: float | None, now: float) -> str:
    """Return how long ago a time was, in the largest unit that fits."""
    if seconds is None:
        return ""
    passed = max(0.0, now - seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= size:
            return f"{passed / size:.0f} {unit} ago"
    return f"{passed:.0f} s ago"


def clock(seconds: float | None) -> str:
    """Return a time as `1:02:03`, or `2:03`; None as nothing."""
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def what_mattered(importances: Mapping[str, float]) -> str:
    """Return the hyperparameters that explain anything of how good trials are, the most important first."""
    told = [f"{name} {share:.0%}" for name, share in importances.items() if share >= 0.005]
    return ", ".join(told) or "none of the hyperparameters"
