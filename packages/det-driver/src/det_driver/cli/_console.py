"""The settings of a command, read from the environment once, and functions that print."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from det_core.config import Auto, ExperimentConfig
from det_core.errors import DetError
from det_core.support.paths import expand_user

from ._output import printable

if TYPE_CHECKING:
    from det_core.hooks import ObserverFailure, Plugins

    from ..client import Client
    from ..driver import DriverSettings
    from ..store import Store, Visible

_FOREVER = 1e11
"""More seconds than anything takes, some 3,000 years."""
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


VISIBLE = "DET_VISIBLE"
"""The variable with the descriptor of an open file. The file lists the experiments that the user of
a server may see. A variable itself has room for some 10,000 ranges only (128 KiB)."""


def write_numbers(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, such as `1-3 7-7`."""
    ranges: list[tuple[int, int]] = []
    for each in sorted(numbers):
        if ranges and ranges[-1][1] == each - 1:
            ranges[-1] = ranges[-1][0], each
        else:
            ranges.append((each, each))
    return " ".join(f"{first}-{last}" for first, last in ranges)


def _read_visible(file: str) -> set[int]:
    """Return the numbers in an open file. Its position stays, as a process may read it again."""
    try:
        opened = int(file)
        text = os.pread(opened, os.fstat(opened).st_size, 0).decode()
        ends = (each.partition("-") for each in text.split())
        return {n for first, _, last in ends for n in range(int(first), int(last) + 1)}
    except (OSError, ValueError, OverflowError):
        raise DetError(
            f"{VISIBLE} is {file!r}, which is no open file with ranges of numbers; det server sets"
            " it, so unset it"
        ) from None


def completing(
    listed: Callable[[Store, click.Context], Iterable[tuple[object, str]]],
) -> Callable[..., list[Any]]:
    """Return a function that completes an argument in the shell, from the values in the store.

    `listed` yields each value with a help text.
    """

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        try:
            with Settings.read(os.environ).reader() as store:
                found = [(str(value), word) for value, word in listed(store, context)]
        except DetError:
            return []
        return [
            CompletionItem(value, help=word)
            for value, word in found
            if value.startswith(incomplete)
        ]

    return complete


def _experiments(store: Store, context: click.Context) -> Iterable[tuple[object, str]]:
    rows = [summary.experiment for summary in store.experiments.list(archived=None)]
    return ((row.id, f"{row.name} ({row.state.lower()})") for row in rows)


def _trials(store: Store, context: click.Context) -> Iterable[tuple[object, str]]:
    # While the value of --trial is completed, click has not parsed the argument yet.
    experiment = context.params.get("experiment") or next(
        (int(each) for each in context.args if each.isdigit()), None
    )
    trials = store.trials.list(experiment) if experiment else []
    return ((trial.id, trial.state.lower()) for trial in trials)


def _checkpoints(store: Store, context: click.Context) -> Iterable[tuple[object, str]]:
    for summary in store.experiments.list(archived=None):
        for row in store.checkpoints.list(experiment_id=summary.experiment.id):
            yield row.uuid, f"trial {row.trial_id}, batch {row.batches} ({row.state.lower()})"


EXPERIMENTS, TRIALS, CHECKPOINTS = map(completing, (_experiments, _trials, _checkpoints))


@dataclass(frozen=True)
class Settings:
    """The settings of a command. `home` holds the store.

    `strict` and `trace` are for authors of plugins. `own_commands` are names that plugins may not
    register. `server` is the address of the server that commands act on, empty for the home.
    `visible` are the experiments that exist for the user, by default all.
    """

    home: Path
    strict: bool
    trace: bool
    environ: Mapping[str, str]
    own_commands: tuple[str, ...] = ()
    server: str = ""
    visible: Visible | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Settings:
        home = expand_user(environ.get("DET_HOME") or "~/.det")
        return cls(
            home=home.absolute(),
            strict=environ.get("DET_STRICT_PLUGINS") == "1",
            trace=environ.get("DET_TRACE_PLUGINS") == "1",
            environ=environ,
            visible=_read_visible(environ[VISIBLE]) if VISIBLE in environ else None,
        )

    @property
    def defaults(self) -> Path | None:
        """The configuration in the home with defaults for all experiments.

        None where there is none.
        """
        return path if (path := self.home / "config.yaml").is_file() else None

    @cached_property
    def plugins(self) -> Plugins:
        from det_core.hooks import Plugins

        return Plugins.installed(
            strict=self.strict,
            trace=self.trace,
            failed=self.observers.note,
            own_commands=self.own_commands,
        )

    @cached_property
    def observers(self) -> ObserverNotes:
        return ObserverNotes(self.home)

    def driver(self, engine: str = "local") -> DriverSettings:
        from ..driver import DriverSettings

        return DriverSettings.detect(self.environ, home=self.home, engine=engine)

    def client(self) -> Client:
        from ..client import Client

        if self.server:
            return Client(master=self.server)
        return Client(self.home, visible=self.visible)

    def store(self) -> Store:
        from ..store import Store

        return Store(self.home, visible=self.visible)

    def reader(self) -> Store:
        from ..store import Store

        return Store.reader(self.home, self.visible)


class ObserverNotes:
    """Files in the home with the failures of observers, one for each plugin.

    A file is removed when an experiment ends in which the observer has not failed.
    """

    def __init__(self, home: Path) -> None:
        self._folder = home / "observer-failures"
        self._failed: set[str] = set()

    def note(self, failure: ObserverFailure) -> None:
        """Write the first failure of each plugin in this process.

        A home that is not writable is no error.
        """
        if failure.plugin in self._failed:
            return
        self._failed.add(failure.plugin)
        text = f"{failure.hook} failed at {time.strftime('%Y-%m-%d %H:%M')}: {failure.message}"
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file(failure.plugin).write_text(text, encoding="utf-8")

    def settle(self, plugins: Plugins) -> None:
        """Remove the notes of observers that have not failed in this experiment."""
        for info in plugins.infos:
            if info.name not in self._failed:
                with contextlib.suppress(OSError):
                    self._file(info.name).unlink(missing_ok=True)

    def of(self, plugin: str) -> list[str]:
        """Return the notes on a plugin."""
        with contextlib.suppress(OSError, ValueError):
            return [self._file(plugin).read_text(encoding="utf-8")]
        return []

    def _file(self, plugin: str) -> Path:
        from urllib.parse import quote

        return self._folder / f"{quote(plugin, safe='')}.txt"


_BROWSER_SECONDS = 2.0


def open_browser(address: str) -> None:
    """Open an address in a browser, where there is a display. The browser may stay in a terminal.

    A browser for terminals would take this one.
    """
    import webbrowser

    from det_core.support.threads import start_thread

    def open_page() -> None:
        with contextlib.suppress(webbrowser.Error, OSError):
            webbrowser.open(address)

    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin":
        # It goes on in the background, unless it is at once what the user closes.
        start_thread(open_page, name="det-browser").join(_BROWSER_SECONDS)


def print_json(value: Any) -> None:
    """Print one JSON value on one line.

    NaN and infinities, which JSON does not have, are text: "NaN", "Infinity", "-Infinity".
    """
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


def optional(module: str, what: str) -> Any:
    """Import a module of an optional package.

    Raises DetError, which begins with `what`, where the package is not installed.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(package):
            raise
        raise DetError(
            f"{what} with {package}, which is not installed; pip install {package}"
        ) from None


def shown(value: Any) -> str:
    """Return the text of a cell: numbers short, nothing for None, control characters escaped."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "  ".join(f"{printable(str(key))}={shown(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    return printable(str(value))


def shown_time(seconds: float, form: str = "%Y-%m-%d %H:%M") -> str:
    """Return a time on the clock here. A question mark for one out of range.

    Databases that are damaged, or came from elsewhere, have such times.
    """
    try:
        return time.strftime(form, time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "?"


def ago(seconds: float | None, now: float) -> str:
    """Return how long ago a time was, in the largest unit that fits."""
    if seconds is None:
        return ""
    if not abs(seconds) < _FOREVER:
        return "?"
    passed = max(0.0, now - seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= size:
            return f"{passed / size:.0f} {unit} ago"
    return f"{passed:.0f} s ago"


def clock(seconds: float | None) -> str:
    """Return seconds as `1:02:03` or `2:03`. Empty for None."""
    if seconds is None:
        return ""
    if not abs(seconds) < _FOREVER:
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def share_done(progress: float, state: str) -> str:
    """Return the progress as a percentage. Empty for a failure before any was reported."""
    from ..store import show_progress

    return "" if state.lower() == "error" and not progress else show_progress(progress)


def auto_choice(config: ExperimentConfig) -> str:
    """Return what the searcher `auto` chose, and why. Empty for another searcher."""
    if not isinstance(config.searcher, Auto):
        return ""
    from ..search import choose

    return f"auto chose {choose(config.searcher, config.hyperparameters)}"


def what_mattered(importances: Mapping[str, float]) -> str:
    """Return the percentages that the hyperparameters explain, the greatest first, and the rest.

    They add up to 100 %.
    """
    from ..client._importances import whole_percents

    percents, rest = whole_percents(importances)
    named = [f"{name} {share}%" for name, share in percents.items() if share]
    if not named:
        return "none of the hyperparameters"
    return ", ".join(named) + (f"; interplay and chance {rest}%" if rest > 0 else "")
