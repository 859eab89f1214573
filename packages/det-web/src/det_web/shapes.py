"""What /api/v1 takes and answers; the OpenAPI document is made of these. Times are unix seconds, positions are batches."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Id = Annotated[int, Meta(ge=0, lt=10**18)]
Number = float | None
"""A number; null for what JSON has not, NaN and infinities."""


class Since(Struct):
    """`since` is the `version` of an earlier answer: only what has changed since then is answered."""

    since: str | None = None


class About(Struct):
    """The server: det's version, the directory that it shows, the machine."""

    version: str
    home: str
    hostname: str


class ExperimentColumns(Struct):
    """Experiments, each a place in all columns; `space` names what is searched, `best_hparams` is what the best trial has."""

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
    problem: list[str | None] = field(default_factory=list)


class Experiments(Struct):
    """The experiments, or those that are new or have changed; `gone` were deleted. `whole`: forget what you had."""

    version: str
    whole: bool
    gone: list[int]
    columns: ExperimentColumns


class Range(Struct):
    """A hyperparameter: its declared range, or its value (`vals` with one)."""

    name: str
    type: str
    minval: Any = None
    maxval: Any = None
    base: Any = None
    vals: list[Any] | None = None


class OneExperiment(Struct):
    """An experiment; `source` is its configuration as short YAML, `defaulted` are the keys that are as by default."""

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
    problem: str | None = None


class Described(Struct):
    """What to change of an experiment; what is left out stays."""

    name: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    labels: list[Annotated[str, Meta(max_length=200)]] | None = None
    note: str | None = None
    archived: bool | None = None


class Deleted(Struct):
    """The uuids of checkpoints that stay, as trials of other experiments start from them."""

    kept: list[str]


class DeleteQuery(Struct):
    """Whether checkpoints' files are left where they are."""

    keep_checkpoints: bool = False


class State(Struct):
    """What an experiment has become by now."""

    state: str


class Chosen(Struct):
    """The numbers of experiments."""

    experiments: Annotated[list[int], Meta(min_length=1, max_length=100)]


class Address(Struct):
    """Where something listens on this machine."""

    address: str


class Yaml(Struct):
    """A configuration, as YAML."""

    config: str


class Checked(Struct):
    """A configuration, as YAML, to be checked against the code of an experiment, where one is named."""

    config: str
    experiment: Id | None = None


class Mistake(Struct):
    """What is wrong with a configuration; `line` and `column` count from 1, 0 where it is at no place of it."""

    line: int
    column: int
    message: str


class Mistakes(Struct):
    """All that is wrong with a configuration."""

    errors: list[Mistake]


class Made(Struct):
    """The number of what was made."""

    id: int


class TrialColumns(Struct):
    """Trials, each a place in all columns; `best` and `last` are of the searcher's metric."""

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
    """The trials of an experiment, or those that are new or have changed; `hparams` has what was searched."""

    version: str
    whole: bool
    columns: TrialColumns
    hparams: dict[str, list[Any]]


class CurvesQuery(Struct):
    """Of the best `top` trials, or of those of `ids` (numbers between commas), one metric of a group."""

    metric: str | None = None
    group: str = "validation"
    top: Annotated[int, Meta(ge=1, le=10_000)] = 100
    ids: Annotated[str, Meta(pattern=r"^[0-9]{1,18}(,[0-9]{1,18})*$")] | None = None


class Curves(Struct):
    """Curves of several trials: the positions and the values of each."""

    trials: list[int]
    x: list[list[float]]
    y: list[list[Number]]


class Standing(Struct):
    """A trial in a rung: its metric there (null: on its way, or failed), and whether it went on."""

    id: int
    metric: Number
    promoted: bool


class Rung(Struct):
    """The trials that came to a length, or are on their way."""

    length: int
    trials: list[Standing]


class Bracket(Struct):
    """Rungs, the lowest first."""

    rungs: list[Rung]


class Member(Struct):
    """A trial in a round of a population; `parent` is the trial that it was copied from."""

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


class Checkpoints(Struct):
    """Checkpoints in columns; `size` is in bytes, `best` is the best of all by the searcher's metric."""

    uuid: list[str]
    trial: list[int]
    batches: list[int]
    metric: list[Number]
    size: list[int]
    state: list[str]
    created: list[float]
    best: list[bool]


class CodeFile(Struct):
    """A file of the code, by its path below the code's directory; its size in bytes."""

    path: str
    size: int
