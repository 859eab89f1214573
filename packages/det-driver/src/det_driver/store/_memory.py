"""What the only writer of an experiment knows of it without asking, as nobody else changes it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Reports:
    """Of a trial: no report is behind `floor`, but those of the groups in `last`; its position, its best value.

    `unpacked` counts what has come of each group since any were packed, and `whole` says that it has counted all.
    """

    floor: int
    batches: int
    best: float | None
    whole: bool
    last: dict[str, int] = field(default_factory=dict)
    unpacked: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Memory:
    """The trials that there are, the newest numbers, what runs have reported; `best` is of the experiment, once it is known.

    `free` is the next number of a trial, and the last of those that were given to the experiment.
    """

    trials: set[int] = field(default_factory=set)
    request: int | None = None
    run: int | None = None
    event: int | None = None
    free: tuple[int, int] | None = None
    best: tuple[float | None] | None = None
    runs: dict[int, int] = field(default_factory=dict)
    reports: dict[int, Reports] = field(default_factory=dict)
