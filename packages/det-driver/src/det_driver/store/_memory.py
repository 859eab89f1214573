"""A cache of the only writer of an experiment. It stays valid, as no other process writes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Reports:
    """The cached state of a trial's reports.

    - No report is after `floor`, except in the groups of `last`, which has their last positions.
    - `batches` is the position of the trial, and `best` its best metric.
    - `unpacked` counts the reports of each group since any were packed. With `whole` it counts all.
    """

    floor: int
    batches: int
    best: float | None
    whole: bool
    last: dict[str, int] = field(default_factory=dict)
    unpacked: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Memory:
    """The trials, the newest numbers and the reports of an experiment.

    `free` is the next number of a trial, and the last number of the block that the experiment has.
    `best` is the best metric of the experiment, once it is known.
    """

    trials: set[int] = field(default_factory=set)
    request: int | None = None
    run: int | None = None
    event: int | None = None
    free: tuple[int, int] | None = None
    best: tuple[float | None] | None = None
    runs: dict[int, int] = field(default_factory=dict)
    reports: dict[int, Reports] = field(default_factory=dict)
