"""Tables that fit the terminal: less important columns are left out, and numbers are not cut."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ._output import printable, raw

GAP = 2
_SHORT_TEXT = 20
"""Text up to this length is shown completely, or its column is left out."""


@dataclass(frozen=True)
class Column:
    """A column.

    Those with a higher `rank` are left out first. Text may be shortened, numbers not.
    """

    name: str
    rank: int
    cells: Sequence[str]
    left: bool = False
    cut: bool = field(default=False, kw_only=True)
    """Whether long text may be shortened."""

    @cached_property
    def width(self) -> int:
        return max(map(width_of, (self.name, *self.cells)))

    @cached_property
    def least(self) -> int:
        """The width below which the column is left out."""
        name = min(width_of(self.name), _SHORT_TEXT)
        return max(
            name,
            *(
                min(width_of(cell), _SHORT_TEXT) if self.cut else width_of(cell)
                for cell in self.cells
            ),
            0,
        )

    def padded(self, text: str, width: int | None = None) -> str:
        room = " " * ((self.width if width is None else width) - width_of(text))
        return text + room if self.left else room + text


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns that fit side by side, in their order.

    Those of lower rank are chosen first.
    """
    chosen: list[Column] = []
    for column in sorted(columns, key=lambda column: column.rank):
        if sum((c.least if c.cut else c.width) + GAP for c in [*chosen, column]) - GAP <= width:
            chosen.append(column)
    return [column for column in columns if any(column is each for each in chosen)]


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], ranks: Mapping[str, int] | None = None
) -> None:
    """Print a table. Columns of numbers are right-aligned.

    Columns that do not fit the terminal are left out and named below the table. Those with the
    greatest of `ranks` (by default the last ones) go first. A pipe or a file gets all columns.
    """
    from ._console import shown

    listed, ranks, terminal = [list(row) for row in rows], ranks or {}, sys.stdout.isatty()
    made = []
    for index, name in enumerate(columns):
        cells = [row[index] for row in listed]
        numeric = bool(listed) and all(
            isinstance(cell, int | float) or cell is None for cell in cells
        )
        rank = ranks.get(name, index if not ranks else len(ranks))
        made.append(
            Column(
                printable(name),
                rank,
                [shown(cell) for cell in cells],
                left=not numeric,
                cut=not numeric,
            )
        )
    width = columns_of(sys.stdout) if terminal else sum(column.width + GAP for column in made)
    there = fitting(made, width) or made[:1]
    widths = _shared(there, width)
    bold, plain = ("\x1b[1m", "\x1b[0m") if terminal and _has_colours() else ("", "")
    out = raw(sys.stdout)
    for i, row in enumerate(zip(*([c.name, *c.cells] for c in there), strict=True)):
        for line in _lines(there, row, widths, is_name=i == 0):
            out.write(f"{bold}{line}{plain}\n" if i == 0 else f"{line}\n")
    if left_out := [column.name for column in made if not any(column is each for each in there)]:
        print_lines([f"no room in {width} columns for: {', '.join(left_out)}"])
    sys.stdout.flush()


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of text. On a terminal they are wrapped at words."""
    width = columns_of(sys.stdout) if sys.stdout.isatty() else 0
    for line in lines:
        for part in line.split("\n"):
            wrapped = (
                textwrap.wrap(part, width, **_WHOLE) if width and width_of(part) > width else [part]
            )
            sys.stdout.writelines(f"{each}\n" for each in wrapped)


_WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def _shared(columns: Sequence[Column], width: int) -> list[int]:
    """Return the widths of the columns: that of their content, as long as there is room."""
    widths = [column.least if column.cut else column.width for column in columns]
    room = width - sum(widths) - GAP * (len(widths) - 1)
    for index in sorted(range(len(columns)), key=lambda index: columns[index].rank):
        more = max(0, min(columns[index].width - widths[index], room))
        widths[index] += more
        room -= more
    return widths


def _lines(
    columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], *, is_name: bool
) -> Iterator[str]:
    """Yield the lines of a row.

    Long text is wrapped at words, and a word that is too long is cut.
    """
    parts = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        whole = width_of(cell) <= width or not (column.cut or is_name)
        lines = [cell] if whole or is_name else textwrap.wrap(cell, width, **_WHOLE) or [""]
        parts.append([shortened(line, width) for line in lines])
    for i in range(max(map(len, parts))):
        texts = (part[i] if i < len(part) else "" for part in parts)
        yield (
            (" " * GAP)
            .join(
                column.padded(text, width)
                for column, text, width in zip(columns, texts, widths, strict=True)
            )
            .rstrip()
        )


_NUMBER = re.compile(r"[\d.][\d.e+-]*$")


def shortened(text: str, most: int) -> str:
    """Return text of at most `most` columns. The cut part is an ellipsis.

    A number at the cut is left out completely.
    """
    if width_of(text) <= most:
        return text
    kept = text
    while width_of(kept) > most - 1 and kept:
        kept = kept[:-1]
    if text[len(kept)] in "0123456789.e+-":
        kept = _NUMBER.sub("", kept) or kept
    return kept + "…"


def width_of(text: str) -> int:
    """Return how many columns of a terminal text takes. East Asian characters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def columns_of(stream: Any) -> int:
    """Return the width of a terminal."""
    if (given := os.environ.get("COLUMNS", "")).isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _has_colours() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in (
        "",
        "dumb",
        "unknown",
    )
