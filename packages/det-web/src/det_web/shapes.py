"""The requests and replies of /api/v1, from which the OpenAPI document is made.

Times are unix seconds, positions are batches.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Id = Annotated[int, Meta(ge=0, lt=10**18)]
Number = float | None
"""A number. It is null for NaN and infinities, which JSON does not have."""


class Since(Struct):
    """`since` is the `version` of an earlier reply.

    Only what has changed since then is returned.
    """

    since: str | None = None


class About(Struct):
    """The server: det's version, the home, the host's name, and who sent the request.

    `user` and `role` are null where the server has no users.
    """

    version: str
    home: str
    hostname: str
    user: str | None
    role: str | None


class ExperimentColumns(Struct):
    """Experiments in columns.

    `space` has the names of the searched hyperparameters, and `best_hparams` their values in the
    best trial.
    """

    id: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    driven: list[bool] = field(default_factory=list)
    orphaned: list[bool] = field(default_factory=list)
    archived: list[bool] = field(default_factory=list)
    labels: list[list[str]] = field(default_factory=list)
    note: list[str] = field(default_factory=list)
    searcher: list[str] = field(default_factory=list)
    metric: list[str] = field(default_factory=list)
    smaller_is_better: list[bool] = field(default_factory=list)
    best: list[Number] = field(default_factory=list)
    best_trial: list[int | None] = field(default_factory=list)
    best_hparams: list[dict[str, Any]] = field(default_factory=list)
    space: list[list[str]] = field(default_factory=list)
    progress: list[float] = field(default_factory=list)
    trials: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    created: list[Number] = field(default_factory=list)
    started: list[Number] = field(default_factory=list)
    ended: list[Number] = field(default_factory=list)
    seconds: list[Number] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    problem: list[str | None] = field(default_factory=list)


class Experiments(Struct):
    """All experiments if `whole`, else those that are new or have changed. `gone` were deleted."""

    version: str
    whole: bool
    gone: list[int]
    columns: ExperimentColumns


class Range(Struct):
    """A hyperparameter with its declared range, or with its value as the only one of `vals`."""

    name: str
    type: str
    minval: Any = None
    maxval: Any = None
    base: Any = None
    vals: list[Any] | None = None


class OneExperiment(Struct):
    """An experiment. `source` is its configuration as short YAML.

    `defaulted` are the keys that have their defaults. `elsewhere` is what det migrate has kept of
    another system, empty for an experiment of det's own.
    """

    id: int
    name: str
    state: str
    driven: bool
    orphaned: bool
    archived: bool
    labels: list[str]
    note: str
    searcher: str
    metric: str
    smaller_is_better: bool
    best: Number
    best_trial: int | None
    best_hparams: dict[str, Any]
    progress: float
    trials: int
    running: int
    created: Number
    started: Number
    ended: Number
    seconds: Number
    waiting: str
    config: dict[str, Any]
    source: str
    defaulted: list[str]
    space: list[Range]
    why: str
    metrics: dict[str, list[str]]
    kind: Literal["curves", "rungs", "population"]
    elsewhere: dict[str, Any]
    problem: str | None = None


class Described(Struct):
    """What to change in an experiment. Fields that are left out stay."""

    name: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    labels: list[Annotated[str, Meta(max_length=200)]] | None = None
    note: str | None = None
    archived: bool | None = None


class Deleted(Struct):
    """The uuids of the checkpoints that stay, as trials of other experiments start from them."""

    kept: list[str]


class DeleteQuery(Struct):
    """Whether the checkpoints' files are kept."""

    keep_checkpoints: bool = False


class State(Struct):
    """The state of an experiment or trial after the request."""

    state: str


class Chosen(Struct):
    """The numbers of experiments."""

    experiments: Annotated[list[int], Meta(min_length=1, max_length=100)]


class Address(Struct):
    """An address on this machine."""

    address: str


class Yaml(Struct):
    """A configuration, as YAML."""

    config: str


class Checked(Struct):
    """A configuration, as YAML, and the experiment whose code it is checked against, if any."""

    config: str
    experiment: Id | None = None


class Mistake(Struct):
    """A mistake in a configuration.

    `line` and `column` count from 1. They are 0 where the mistake has no place.
    """

    line: int
    column: int
    message: str


class Mistakes(Struct):
    """All mistakes in a configuration."""

    errors: list[Mistake]


class Made(Struct):
    """The number of the experiment that was created."""

    id: int


class TrialColumns(Struct):
    """Trials in columns. `best` and `last` are values of the searcher's metric."""

    id: list[int]
    state: list[str]
    batches: list[int]
    progress: list[float]
    best: list[Number]
    last: list[Number]
    best_batches: list[int | None]
    restarts: list[int]
    started: list[Number]
    ended: list[Number]
    seconds: list[Number]
    why: list[str | None]
    parent: list[int | None]


class Trials(Struct):
    """All trials if `whole`, else those that are new or have changed.

    `hparams` has the searched hyperparameters.
    """

    version: str
    whole: bool
    columns: TrialColumns
    hparams: dict[str, list[Any]]


class CurvesQuery(Struct):
    """One metric of the best `top` trials, or of the trials `ids` (separated by commas)."""

    metric: str | None = None
    group: str = "validation"
    top: Annotated[int, Meta(ge=1, le=10_000)] = 100
    ids: Annotated[str, Meta(pattern=r"^[0-9]{1,18}(,[0-9]{1,18})*$")] | None = None
    by: Literal["batches", "epochs", "seconds"] = "batches"


class Curves(Struct):
    """Curves of several trials: the positions and the values of each."""

    trials: list[int]
    x: list[list[float]]
    y: list[list[Number]]


class RungEntry(Struct):
    """A trial in a rung: its metric there, and whether it was promoted.

    The metric is null where the trial has not reached the rung, or has failed.
    """

    id: int
    metric: Number
    promoted: bool


class Rung(Struct):
    """The trials that have reached a length, or train towards it."""

    length: int
    trials: list[RungEntry]


class Bracket(Struct):
    """The rungs of a bracket, the lowest first."""

    rungs: list[Rung]


class Member(Struct):
    """A trial in a round of a population. `parent` is the trial that it was copied from."""

    id: int
    parent: int | None
    metric: Number


class Search(Struct):
    """How to draw a search."""

    kind: Literal["curves", "rungs", "population"]
    metric: str
    smaller_is_better: bool
    brackets: list[Bracket] = field(default_factory=list)
    rounds: list[list[Member]] = field(default_factory=list)


class Importances(Struct):
    """The share of the trials' differences that each hyperparameter explains, the greatest first.

    `trials` is the number of trials that were compared, at `length` in the searcher's unit. If
    `length` is null, their best values were compared. `shares` is empty for less than `needed`
    trials.
    """

    shares: dict[str, float]
    trials: int
    length: int | None
    needed: int


class Checkpoints(Struct):
    """Checkpoints in columns. `size` is in bytes.

    `best` marks the best of all by the searcher's metric.
    """

    uuid: list[str]
    trial: list[int]
    batches: list[int]
    metric: list[Number]
    size: list[int]
    state: list[str]
    created: list[float]
    best: list[bool]


class CodeFile(Struct):
    """A file of the code: its path in the code's directory, and its size in bytes."""

    path: str
    size: int
