"""Draws a running search and updates it in place.

Lines fit the terminal, and numbers are not cut.
"""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from typing import Any

from ..client import Space
from ..store import TrialRow
from ._console import clock, share_done, shown
from ._output import printable, raw
from ._progress import SearchProgress, TrialProgress
from ._table import GAP, Column, fitting, shortened

_MOST_RUNGS = 8
_LONGEST_TEXT = 20
_LONGEST_BAR = 60
_SHORT_BAR = 10


class Live(SearchProgress):
    """Draws the heading, the best trial, leaders, running trials, rungs and the latest events."""

    def __init__(self, earlier: Iterable[TrialRow] = ()) -> None:
        from rich.console import Console
        from rich.live import Live as Screen

        super().__init__(earlier)
        console = Console(file=raw(sys.stdout))
        self._signs = "━─" if console.encoding.startswith("utf") else "#-"
        self._screen = Screen(
            console=console, get_renderable=lambda: self, refresh_per_second=4, transient=False
        )

    def __enter__(self) -> None:
        self._screen.start()

    def __exit__(self, *ignored: object) -> None:
        # A driver that is killed does not report its end.
        if self.state in ("starts", "running"):
            self._end("stopped")
        self._screen.refresh()
        self._screen.stop()

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        for style, line in self.lines(options.max_width, console.size.height):
            yield Text(line, style, no_wrap=True, overflow="crop", end="\n")

    def lines(self, width: int, height: int) -> list[tuple[str, str]]:
        """Return the style and text of each line: at most `height` lines of `width` columns."""
        now = time.monotonic()
        head = [("bold", line) for line in packed(self._heading(now), width)]
        head += (
            [("cyan", bar(self.done, min(width, _LONGEST_BAR), self._signs))]
            if self.state == "running"
            else []
        )
        head += [("", line) for line in packed(self._counted(), width)]
        head += [("green", line) for line in packed(self._leading(), width)]
        if self.waits:
            head += [
                ("yellow", line)
                for line in textwrap.wrap(printable(f"waiting {self.waits}"), width)
            ]
        for notice in self.notices:
            head += [("yellow", line) for line in textwrap.wrap(printable(notice), width)]
        foot = [("dim", line) for line in packed(self._rungs(), width)]
        for at, parts in list(self.happened) if self.state == "running" else []:
            foot += [("dim", packed([clock(at), *parts], width, 1)[0])]
        room = height - len(head) - len(foot) - 3
        table = list(self._table(width, max(1, room), now))
        return [
            *head,
            *([("", "")] if table else []),
            *table,
            *([("", "")] if table and foot else []),
            *foot,
        ]

    def _heading(self, now: float) -> list[str]:
        state = "starting" if self.starting else "" if self.state == "running" else self.state
        done = "" if self.starting and not self.done else share_done(self.done, self.state)
        parts = [self.title or "experiment", state, done]
        left = clock(self.left(now))
        parts += [clock(now - self.began), f"{left} left" if left else ""]
        return [*parts, f"{shown(float(f'{self.speed:.3g}'))} batches/s" if self.speed else ""]

    def _counted(self) -> list[str]:
        return [] if self.single else ["trials:", ", ".join(self.counted()) or "none yet"]

    def _leading(self) -> list[str]:
        if self.best is None:
            return []
        value, trial, batches, chosen = self.best
        where = f"trial {trial}, batch {batches}"
        return [
            f"best {self.metric} {shown(value)}:",
            where,
            *(f"{short_text(n, v)}" for n, v in chosen.items()),
        ]

    def _rungs(self) -> list[str]:
        """Return how many trials have reached each length, and how many train towards it.

        Empty unless there are several lengths.
        """
        rungs = self.search.rungs if self.search is not None else ()
        parts = [
            f"{r.length}: {r.reached}{f' (+{r.under_way})' if r.under_way else ''}"
            for r in rungs[-_MOST_RUNGS:]
        ]
        legend = " (+ on the way)" if any(rung.under_way for rung in rungs[-_MOST_RUNGS:]) else ""
        return [f"trials by length{legend}:", *parts] if len(rungs) > 1 else []

    def _table(self, width: int, room: int, now: float) -> Iterator[tuple[str, str]]:
        """Yield the lines of the leaders, other running trials, and those that ended lately."""
        leaders = self.leaders()
        others = [row for row in list(self.rows.values()) if row not in leaders]
        rows = [*leaders, *sorted(others, key=lambda row: (not row.running, -row.id))][:room]
        if not rows:
            return
        columns = fitting(
            [column for column in self._columns(rows, now) if any(column.cells)], width
        )
        for i, cells in enumerate(zip(*([c.name, *c.cells] for c in columns), strict=True)):
            line = (" " * GAP).join(
                column.padded(cell) for column, cell in zip(columns, cells, strict=True)
            )
            yield "dim" if i == 0 else "", line.rstrip()

    def _columns(self, rows: list[TrialProgress], now: float) -> Iterator[Column]:
        yield Column("trial", 0, [str(row.id) for row in rows])
        yield Column("state", 2, [self.find_state(row) for row in rows], left=True)
        yield Column("batch", 3, [str(row.batches) for row in rows])
        begun = [row.done or self.find_state(row) != "starting" for row in rows]
        yield Column(
            "done",
            4,
            [
                share_done(row.done, row.state) if there else ""
                for row, there in zip(rows, begun, strict=True)
            ],
        )
        yield Column("left", 5, [clock(row.left(now)) for row in rows])
        yield Column(
            "batch/s", 7, [shown(float(f"{row.speed:.3g}")) if row.speed else "" for row in rows]
        )
        yield Column("best", 1, [shown(row.best) for row in rows])
        if not self.single:
            yield Column(
                "",
                8,
                [bar(row.done, _SHORT_BAR, self._signs) if row.running else "" for row in rows],
                left=True,
            )
        names = list(dict.fromkeys(name for row in rows for name in row.chosen))
        for name, title in Space.short(names).items():
            cells = [_cell(row.chosen.get(name)) for row in rows]
            yield Column(shortened(printable(title), _LONGEST_TEXT), 6, cells)


def bar(done: float, width: int, signs: str) -> str:
    """Return a bar of `width` characters. `signs` are the one for done and the one for the rest."""
    full, empty = signs[0], signs[1]
    filled = int(min(1.0, max(0.0, done)) * width)
    return full * filled + empty * (width - filled)


def packed(parts: Iterable[str], width: int, lines: int | None = None) -> list[str]:
    """Return parts in order on lines of at most `width`. Only a part longer than a line is cut.

    With more than `lines`, the other parts are left out and counted.
    """
    listed = [printable(part) for part in parts if part]
    found: list[str] = []
    for i, part in enumerate(listed):
        joined = f"{found[-1]}  {part}" if found else part
        more = f"  +{len(listed) - i - 1}" if lines == 1 and i + 1 < len(listed) else ""
        if found and len(joined) + len(more) <= width:
            found[-1] = joined
        elif lines is not None and len(found) == lines:
            found[-1] = f"{found[-1]}  +{len(listed) - i}"
            break
        else:
            found.append(shortened(part, width))
    return found


def short_text(name: str, value: Any) -> str:
    """Return one hyperparameter as text. Numbers are complete, other long values are cut."""
    return f"{printable(name)}={_cell(value)}"


def _cell(value: Any) -> str:
    text = shown(value)
    return text if isinstance(value, int | float) else shortened(text, _LONGEST_TEXT)
