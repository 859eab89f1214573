"""Counts the rows that were read, written and left out, with the reasons."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

KINDS = (
    "experiments",
    "trials",
    "attempts",
    "metrics",
    "batch metrics",
    "checkpoints",
    "log lines",
    "models",
    "model versions",
)

REPORTS, LOGS = "reports, before they are packed", "logs"
"""The kinds of data whose bytes a dry run prints for every source."""


class Tally:
    """Counts rows by kind. The rows read are those written and those left out."""

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()
        self.left_out: Counter[tuple[str, str]] = Counter()
        self.numbers: list[int] = []
        """The numbers of the experiments that were written."""
        self.notes: list[str] = []
        """Sentences about single experiments."""
        self.failed = False
        """Whether an experiment was not written because of its own rows."""
        self.sizes: Counter[str] = Counter()
        """The bytes to write, by what they are. Only a dry run counts them."""

    def write(self, kind: str, count: int = 1) -> None:
        """Count rows that were written."""
        self.written[kind] += count

    def leave_out(self, kind: str, why: str, count: int = 1) -> None:
        """Count rows that were left out, by the reason."""
        if count:
            self.left_out[kind, why] += count

    def add(self, other: Tally) -> None:
        """Add the counts of one experiment."""
        self.written += other.written
        self.left_out += other.left_out
        self.notes += other.notes
        self.numbers += other.numbers
        # Unlike +=, this keeps zeros.
        self.sizes.update(other.sizes)
        self.failed |= other.failed

    def read(self, kind: str) -> int:
        """Return the number of rows of a kind that were read."""
        return self.written[kind] + sum(
            count for (each, _), count in self.left_out.items() if each == kind
        )

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report for people."""
        for kind in KINDS:
            if kind == "batch metrics" and not self.read(kind):
                continue
            yield f"{kind}: {self.read(kind)} read, {self.written[kind]} written"
            for (each, why), count in sorted(self.left_out.items()):
                if each == kind:
                    yield f"  {count} left out: {why}"
        if self.written["verified"]:
            yield (
                f"verified: {self.written['verified']} trials, as they are stored, were compared"
                " with the source"
            )
        yield from self.notes


def describe_room(sizes: Mapping[str, int], home: Path) -> str:
    """Return a sentence with the sizes in bytes of what would be written, and the free space."""
    place = next(each for each in (home, *home.parents) if each.exists())
    found = ", ".join(f"{size / 2**20:.1f} MiB of {name}" for name, size in sizes.items())
    return f"that is {found}; {shutil.disk_usage(place).free / 2**20:.0f} MiB are free in {home}"
