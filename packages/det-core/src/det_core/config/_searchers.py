"""How much training, the ranges of hyperparameters, and the settings of each searcher; `searcher.name` says which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from .fields import REST, kind, needed

Unit = Literal["batches", "records", "epochs"]
UNITS: tuple[Unit, ...] = ("batches", "records", "epochs")
Trials = Annotated[int, Meta(ge=1), needed("give the number of trials to make")]
Concurrent = Annotated[int, Meta(ge=0)]
Divisor = Annotated[float, Meta(gt=1)]
Probability = Annotated[float, Meta(ge=0, le=1)]
MaxTime = Annotated[int, Meta(ge=1)]
Mode = Literal["aggressive", "standard", "conservative"]


class Length(Struct, frozen=True):
    """An amount of training, absolute from the trial's start; in YAML `{epochs: 3}`, or a bare number of batches."""

    unit: Unit
    n: int

    def __str__(self) -> str:
        return f"{self.n} {self.unit}"


Amount = Annotated[Length, kind("length")]


class Const(Struct, frozen=True, tag_field="type", tag="const"):
    """One value, whatever it is; a bare value in YAML means the same."""

    val: Any
    """The value; also a list or a map."""


class Int(Struct, frozen=True, tag_field="type", tag="int"):
    """A whole number from `minval` to `maxval`, both included."""

    minval: int
    """The smallest value."""
    maxval: int
    """The largest value."""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How many values a grid takes, evenly spaced; `grid` needs it."""


class Double(Struct, frozen=True, tag_field="type", tag="double"):
    """A number between `minval` and `maxval`, evenly distributed."""

    minval: float
    """The lower bound."""
    maxval: float
    """The upper bound."""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How many values a grid takes, evenly spaced; `grid` needs it."""


class Log(Struct, frozen=True, tag_field="type", tag="log"):
    """`base` to the power of a number between `minval` and `maxval`: the bounds are exponents."""

    minval: float
    """The lower exponent."""
    maxval: float
    """The upper exponent."""
    base: Annotated[float, Meta(gt=0)] = 10.0
    """What is raised to the exponent."""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How many values a grid takes, evenly spaced in the exponent; `grid` needs it."""


class Categorical(Struct, frozen=True, tag_field="type", tag="categorical"):
    """One of `vals`, all equally likely."""

    vals: Annotated[tuple[Any, ...], Meta(min_length=1)]
    """The values to choose from."""


if TYPE_CHECKING:
    Hyperparameter = Const | Int | Double | Log | Categorical | dict[str, "Hyperparameter"]
else:  # typing cannot evaluate an alias that contains itself
    Hyperparameter = Const | Int | Double | Log | Categorical | dict

RANGES: dict[str, type[Struct]] = {"const": Const, "int": Int, "double": Double, "log": Log, "categorical": Categorical}


class SearcherConfig(Struct, frozen=True, kw_only=True, tag_field="name"):
    """What all searchers have in common; a searcher of one's own derives its settings from it."""

    metric: Annotated[str, needed("name the validation metric that ranks the trials, such as validation_loss")]
    """The validation metric by which trials and checkpoints are ranked."""
    smaller_is_better: bool = True
    """Whether a smaller value of the metric is the better one."""
    source_trial_id: int | None = None
    """Start every trial from the latest checkpoint of this trial, counters at zero; wins over the next one."""
    source_checkpoint_uuid: str | None = None
    """Start every trial from this checkpoint, counters at zero."""

    @property
    def name(self) -> str:
        """The name under which the searcher is registered."""
        return str(self.__struct_config__.tag)


class Single(SearcherConfig, frozen=True, tag="single"):
    """One trial; every hyperparameter that is a range is sampled once."""

    max_length: Amount | None = None
    """How long to train; a trial class needs it, a script may know by itself."""


class Random(SearcherConfig, frozen=True, tag="random"):
    """Independent samples of the hyperparameters."""

    max_trials: Trials
    """How many trials to make."""
    max_concurrent_trials: Concurrent = 16
    """How many trials may run at once; 0 means all."""
    max_length: Amount | None = None
    """How long to train each trial; a trial class needs it."""


class Grid(SearcherConfig, frozen=True, tag="grid"):
    """Every combination of the hyperparameters; `int`, `double` and `log` ranges need a `count`."""

    max_concurrent_trials: Concurrent = 16
    """How many trials may run at once; 0 means all."""
    max_length: Amount | None = None
    """How long to train each trial; a trial class needs it."""


class Halving(SearcherConfig, frozen=True, kw_only=True):
    """What the kinds of asynchronous successive halving have in common."""

    max_trials: Trials
    """How many trials to make, over all brackets."""
    max_length: Amount | None = None
    """How long the best trials train; the promoting kind."""
    max_time: MaxTime | None = None
    """How long the best trials train, in units of `time_metric`; the stopping kind."""
    time_metric: str | None = None
    """The validation metric that says how long a trial has trained, such as batches or epochs."""
    divisor: Divisor = 4.0
    """Of the trials of a rung, one in this many goes on to the next."""
    max_concurrent_trials: Concurrent = 16
    """How many trials may run at once; 0 lets the searcher choose."""
    stop_once: bool | None = None
    """With `max_length`: true takes the stopping kind instead of the promoting one."""


class AdaptiveAsha(Halving, frozen=True, tag="adaptive_asha"):
    """Several brackets of asynchronous successive halving (Li et al. 2018, 2020).

    With `max_length` the promoting kind, which pauses trials and resumes the promising ones; with `max_time` and
    `time_metric` the stopping kind, which ends the others early.
    """

    mode: Mode = "standard"
    """How many trials are stopped early: aggressive, standard or conservative."""
    max_rungs: Annotated[int, Meta(ge=1)] = 5
    """The most rungs that a bracket may have."""
    bracket_rungs: tuple[Annotated[int, Meta(ge=1)], ...] = ()
    """The rungs of each bracket, instead of what `mode` and `max_rungs` give."""


class AsyncHalving(Halving, frozen=True, tag="async_halving"):
    """One bracket of asynchronous successive halving (Li et al. 2020); kinds as in `adaptive_asha`."""

    num_rungs: Annotated[int, Meta(ge=1), needed("give the number of rungs")]
    """How many rungs there are."""


class ReplaceFunction(Struct, frozen=True, kw_only=True):
    """How population-based training replaces trials between rounds."""

    truncate_fraction: Annotated[float, Meta(ge=0, le=0.5)] = 0.2
    """Which share of the population is replaced by copies of the best."""


class ExploreFunction(Struct, frozen=True, kw_only=True):
    """How population-based training changes the hyperparameters of a copy."""

    resample_probability: Probability = 0.2
    """How likely a hyperparameter is drawn anew."""
    perturb_factor: Probability = 0.2
    """By which share a hyperparameter that is not drawn anew grows or shrinks."""


class Pbt(SearcherConfig, frozen=True, tag="pbt"):
    """Population-based training (Jaderberg et al. 2017)."""

    population_size: Annotated[int, Meta(ge=1), needed("give the number of trials in a round")]
    """How many trials train side by side."""
    length_per_round: Annotated[Amount, needed("give the length of a round, such as {epochs: 1}")]
    """How long each trial trains in a round."""
    num_rounds: Annotated[int, Meta(ge=1), needed("give the number of rounds")]
    """How many rounds there are."""
    replace_function: ReplaceFunction = ReplaceFunction()
    """How trials are replaced between rounds."""
    explore_function: ExploreFunction = ExploreFunction()
    """How the hyperparameters of a copy are changed."""


class Hyperband(SearcherConfig, frozen=True, tag="hyperband"):
    """Synchronous Hyperband (Li et al. 2018)."""

    max_length: Annotated[Amount, needed("give the length of the longest trials, such as {epochs: 27}")]
    """How long the best trials train."""
    divisor: Divisor = 3.0
    """Of the trials of a rung, one in this many goes on to the next."""


class Custom(SearcherConfig, frozen=True, tag="custom"):
    """A searcher of one's own, from the code directory; every other key is handed to it."""

    entrypoint: Annotated[str, Meta(pattern=r"^[\w.]+:[\w.]+$"), needed("name your searcher as module:Class")]
    """The searcher, as `module:Class`."""
    options: Annotated[dict[str, Any], REST] = {}
    """The other keys of the section, as they are written."""


class UnknownSearcher(Struct, frozen=True):
    """A plugin's searcher, looked at without the plugin: the keys as they are written."""

    options: Annotated[dict[str, Any], REST] = {}

    @property
    def metric(self) -> str | None:
        """The validation metric, where the section names one."""
        return self.options.get("metric")

    @property
    def smaller_is_better(self) -> bool:
        """Whether a smaller value of the metric is the better one."""
        return bool(self.options.get("smaller_is_better", True))


SEARCHERS: dict[str, type[Struct]] = {
    "adaptive_asha": AdaptiveAsha,
    "async_halving": AsyncHalving,
    "custom": Custom,
    "grid": Grid,
    "hyperband": Hyperband,
    "pbt": Pbt,
    "random": Random,
    "single": Single,
}
