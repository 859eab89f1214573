"""The requests and replies of /api/v1/trials, and of experiments' logs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from .shapes import Id, Number


class LogQuery(Struct):
    """A part of a log: about `limit` bytes from `offset`. A negative one counts from the end."""

    offset: Annotated[int, Meta(ge=-(10**15), le=10**15)] = -65536
    limit: Annotated[int, Meta(ge=1, le=1 << 20)] = 65536


class TrialLogQuery(LogQuery):
    """The run, by its number in the trial (by default the last), and the rank."""

    run: Id | None = None
    rank: Id = 0


class LogSearchQuery(Struct):
    """Lines that contain a text, ignoring case, from the byte `from`."""

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


class AllLogsQuery(Struct):
    """The number of logs, and the number of bytes at the end of each."""

    most: Annotated[int, Meta(ge=1, le=1000)] = 100
    limit: Annotated[int, Meta(ge=1, le=1 << 16)] = 8192


class OneLog(Struct):
    """The end of the log of a rank in a run, and the run's start, end and reason."""

    trial: int
    run: int
    rank: int
    started: float
    ended: Number
    why: str | None
    log: Log


class AllLogs(Struct):
    """The logs of all trials, those of the run that began first first.

    `left_out` logs of older runs are missing.
    """

    logs: list[OneLog]
    left_out: int


class RankLog(Struct):
    """A rank's log, and its size in bytes."""

    rank: int
    size: int


class Run(Struct):
    """A run of a trial. `from` is the position at which it began."""

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


class MediaFile(Struct):
    """An image, a table or a text that a trial logged: its position, address, size and time."""

    batches: int
    path: str
    size: int
    written: float


class MediaSeries(Struct):
    """What a trial logged by one name, in the order of positions."""

    name: str
    kind: Literal["image", "table", "text"]
    files: list[MediaFile]


class MediaList(Struct):
    """All images, tables and texts that a trial logged."""

    media: list[MediaSeries]


class Failure(Struct):
    """The last output of a failed run's process: its traceback, if it has one."""

    run: int
    rank: int
    text: str


class OneTrial(Struct):
    """A trial. `load` has the lines of Python that load its best checkpoint.

    `failure` is set where it failed.
    """

    id: int
    experiment: int
    experiment_name: str
    state: str
    hparams: dict[str, Any]
    why: str | None
    failure: Failure | None
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
    """Numbers, separated by commas."""

    ids: Annotated[str, Meta(pattern=r"^[0-9]{1,18}(,[0-9]{1,18}){0,99}$")]


class SeveralTrials(Struct):
    """Trials of one or several experiments."""

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
    """A curve made of `n` reports.

    `best` is the point of the best checkpoint, if it is on the curve.
    """

    n: int
    x: list[float]
    y: list[Number]
    best: tuple[float, float] | None
