"""The search as it goes on, redrawn in place: as wide as the terminal, whatever that is, with no number cut."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..client import Space
from ..store import TrialRow
from ._console import clock, shown
from ._progress import SearchProgress, TrialProgress

_MOST_RUNGS = 8
_LONGEST_TEXT = 20
_GAP = 2


@dataclass(frozen=True)
class _Column:
    """One column; of two that do not both fit the one with the lower `rank` stays."""

    name: str
    rank: int
    cells: Sequence[str]
    left: bool = False

    @property
    def width(self) -> int:
        return max(map(len, (self.name, *self.cells)))

    def padded(self, text: str) -> str:
        return text.ljust(self.width) if self.left else text.rjust(self.width)


class Live(SearchProgress):
    """Draws the heading, the best so far, the leaders and the running trials, the rungs, and what just happened."""

    def __init__(self, earlier: Iterable[TrialRow] = ()) -> None:
        from rich.live import Live as Screen

        super().__init__(earlier)
        self._screen = Screen(get_renderable=lambda: self, refresh_per_second=4, transient=False)

    def __enter__(self) -> None:
        self._screen.start()

    def __exit__(self, *ignored: object) -> None:
        self._screen.refresh()
        self._screen.stop()

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        for style, line in self.lines(options.max_width, console.size.height):
            yield Text(line, style, no_wrap=True, overflow="crop", end="\n")

    def lines(self, width: int, height: int) -> list[tuple[str, str]]:
        """Return what to draw: lines of at most `width`, no more than `height` of them, each with its style."""
        now = time.monotonic()
        head = [("bold", line) for line in packed(self._heading(now), width)]
        head += [("", line) for line in packed(self._counted(), width)]
        head += [("green", line) for line in packed(self._leading(), width)]
        if self.waits:
            head += [("yellow", line) for line in textwrap.wrap(f"waiting {self.waits}", width)]
        foot = [("dim", line) for line in packed(self._rungs(), width)]
        for at, parts in list(self.happened) if self.state == "running" else []:
            foot += [("dim", packed([clock(at), *parts], width, 1)[0])]
        room = height - len(head) - len(foot) - 3
        table = list(self._table(width, max(1, room), now))
        return [*head, *([("", "")] if table else []), *table, *([("", "")] if table and foot else []), *foot]

    def _heading(self, now: float) -> list[str]:
        parts = [self.title or "experiment", self.state if self.state != "running" else "", f"{self.done:.0%}"]
        left = clock(self.left(now))
        parts += [clock(now - self.began), f"{left} left" if left else ""]
        return [*parts, f"{shown(float(f'{self.speed:.3g}'))} batches/s" if self.speed else ""]

    def _counted(self) -> list[str]:
        listed = [f"{count} {name}" for name, count in self.counts().items()]
        return [] if self.single else ["trials:", ", ".join(listed) or "none yet"]

    def _leading(self) -> list[str]:
        if self.best is None:
            return []
        value, trial, batches, chosen = self.best
        where = f"trial {trial}, batch {batches}"
        return [f"best {self.metric} {shown(value)}:", where, *(f"{short_text(n, v)}" for n, v in chosen.items())]

    def _rungs(self) -> list[str]:
        """Say how many trials have reached each length, where there are several, and how many are on the way."""
        rungs = self.search.rungs if self.search is not None else ()
        parts = [f"{r.length}: {r.reached}{f' (+{r.under_way})' if r.under_way else ''}" for r in rungs[-_MOST_RUNGS:]]
        return ["trials by length:", *parts] if len(rungs) > 1 else []

    def _table(self, width: int, room: int, now: float) -> Iterator[tuple[str, str]]:
        """The leaders, then the others that run, the newest first, then those that have just ended."""
        leaders = self.leaders()
        others = [row for row in list(self.rows.values()) if row not in leaders]
        rows = [*leaders, *sorted(others, key=lambda row: (not row.running, -row.id))][:room]
        if not rows:
            return
        columns = fitting([column for column in self._columns(rows, now) if any(column.cells)], width)
        for i, cells in enumerate(zip(*([c.name, *c.cells] for c in columns), strict=True)):
            line = (" " * _GAP).join(column.padded(cell) for column, cell in zip(columns, cells, strict=True))
            yield "dim" if i == 0 else "", line.rstrip()

    def _columns(self, rows: list[TrialProgress], now: float) -> Iterator[_Column]:
        yield _Column("trial", 0, [str(row.id) for row in rows])
        yield _Column("state", 2, [self.settled(row) for row in rows], left=True)
        yield _Column("batch", 3, [str(row.batches) for row in rows])
        yield _Column("done", 4, [f"{row.done:.0%}" for row in rows])
        yield _Column("left", 5, [clock(row.left(now)) for row in rows])
        yield _Column("batch/s", 7, [shown(float(f"{row.speed:.3g}")) if row.speed else "" for row in rows])
        yield _Column("best", 1, [shown(row.best) for row in rows])
        names = list(dict.fromkeys(name for row in rows for name in row.chosen))
        for name, title in Space.short(names).items():
            cells = [_cell(row.chosen.get(name)) for row in rows]
            yield _Column(_cut(title), 6, cells)


def fitting(columns: list[_Column], width: int) -> list[_Column]:
    """Return the columns that fit side by side, whole, in their order; those of a lower rank are chosen first."""
    chosen: list[_Column] = []
    for column in sorted(columns, key=lambda column: column.rank):
        if sum(c.width + _GAP for c in [*chosen, column]) - _GAP <= width:
            chosen.append(column)
    return [column for column in columns if column in chosen]


def packed(parts: Iterable[str], width: int, lines: int | None = None) -> list[str]:
    """Return parts, in order, on lines of at most `width`, no part broken unless it is longer than a line.

    Of more than `lines`, the rest of the parts is left out and counted.
    """
    listed = [part for part in parts if part]
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
            found.append(_cut(part, width))
    return found


def short_text(name: str, value: Any) -> str:
    """Return one hyperparameter as text; numbers whole, whatever else is long cut."""
    return f"{name}={_cell(value)}"


def _cell(value: Any) -> str:
    text = shown(value)
    return text if isinstance(value, int | float) else _cut(text)


def _cut(text: str, most: int = _LONGEST_TEXT) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
