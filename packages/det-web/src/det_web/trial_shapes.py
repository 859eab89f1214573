"""What /api/v1/trials takes and answers, and the logs of experiments."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from .shapes import Id, Number


class LogQuery(Struct):
    """Which part of a log: about `limit` bytes from `offset`, which counts from the end where it is below 0."""

    offset: Annotated[int, Meta(ge=-(10**15), le=10**15)] = -65536
    limit: Annotated[int, Meta(ge=1, le=1 << 20)] = 65536


class TrialLogQuery(LogQuery):
    """Of which run, by its number in the trial (by default the last), and rank."""

    run: Id | None = None
    rank: Id = 0


class LogSearchQuery(Struct):
    """Lines that contain a text, in upper or lower case, from a byte on."""

    text: Annotated[str, Meta(min_length=1, max_length=1000)]
    run: Id | None = None
    rank: Id = 0
    first: Annotated[int, Meta(ge=0, le=10**15)] = field(name="from", default=0)


class Log(Struct):
    """Whole lines of a log: the bytes from `offset` to `end` of `size`."""

    text: str
    offset: int
    end: int
    size: int


class RankLog(Struct):
    """A rank's log, and its size in bytes."""

    rank: int
    size: int


class Run(Struct):
    """One attempt of a trial; `from` is the position at which it began."""

    id: int
    number: int
    state: str
    started: float
    ended: Number
    why: str | None
    host: str | None
    begin: int = field(name="from")
    ranks: list[RankLog]


class Saved(Struct):
    """A checkpoint of a trial."""

    uuid: str
    batches: int
    metric: Number
    size: int
    state: str
    created: float
    best: bool


class Trace(Struct):
    """A trace that the profiler wrote, and its size in bytes."""

    name: str
    size: int


class OneTrial(Struct):
    """A trial; `load` are lines of Python that load its best checkpoint."""

    id: int
    experiment: int
    experiment_name: str
    state: str
    hparams: dict[str, Any]
    why: str | None
    batches: int
    best: Number
    best_batches: int | None
    last: Number
    metric: str
    smaller_is_better: bool
    restarts: int
    parent: int | None
    started: Number
    ended: Number
    runs: list[Run]
    metrics: dict[str, list[str]]
    checkpoints: list[Saved]
    traces: list[Trace]
    load: str


class IdsQuery(Struct):
    """Numbers, between commas."""

    ids: Annotated[str, Meta(pattern=r"^[0-9]{1,18}(,[0-9]{1,18}){0,99}$")]


class SeveralTrials(Struct):
    """Trials, of one or several experiments."""

    trials: list[OneTrial]


class SeriesQuery(Struct):
    """One metric of a group as a curve of at most 2 `width` + 2 points, in a range of `by`."""

    metric: str
    group: str = "training"
    width: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    start: Number = field(name="from", default=None)
    end: Number = field(name="to", default=None)
    by: Literal["batches", "epochs", "seconds"] = "batches"


class Curve(Struct):
    """A curve made of `n` reports; `best` is the best checkpoint's place, where that is on it."""

    n: int
    x: list[float]
    y: list[Number]
    best: tuple[float, float] | None
