"""Lengths of training, ranges of hyperparameters, and the settings of each searcher.

`searcher.name` chooses the searcher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from .fields import REST, expects, kind, needed

Unit = Literal["batches", "records", "epochs"]
UNITS: tuple[Unit, ...] = ("batches", "records", "epochs")
Trials = Annotated[int, Meta(ge=1), needed("give the number of trials to make")]
Concurrent = Annotated[int, Meta(ge=0)]
Divisor = Annotated[float, Meta(gt=1)]
Probability = Annotated[float, Meta(ge=0, le=1)]
MaxTime = Annotated[int, Meta(ge=1)]
Mode = Literal["aggressive", "standard", "conservative"]
Sampler = Literal["random", "evolution"]


class Length(Struct, frozen=True):
    """A length of training, counted from the trial's start.

    In YAML it is `{epochs: 3}`, or a number of batches.
    """

    unit: Unit
    n: int

    def __str__(self) -> str:
        return f"{self.n} {self.unit}"


Amount = Annotated[Length, kind("length")]
When = Annotated[dict[str, Any], Meta(min_length=1), expects("a map such as {optimizer: sgd}")]


class Const(Struct, frozen=True, tag_field="type", tag="const"):
    """One value, whatever it is. A bare value in YAML means the same."""

    val: Any
    """The value. Also a list or a map."""
    when: When | None = None
    """Other hyperparameters, by dotted names, and the value that each must have, or a list of such.

    Else it is absent.
    """


class Int(Struct, frozen=True, tag_field="type", tag="int"):
    """A whole number from `minval` to `maxval`, both included."""

    minval: int
    """The smallest value."""
    maxval: int
    """The largest value."""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How many values a grid takes, evenly spaced. `grid` needs it, or a `step`."""
    step: Annotated[int, Meta(ge=1)] | None = None
    """The distance between two values, counted from `minval`. By default 1."""
    log: bool = False
    """Whether each order of magnitude is equally likely. `minval` is 1 or more then."""
    when: When | None = None
    """Other hyperparameters, by dotted names, and the value that each must have, or a list of such.

    Else it is absent.
    """


class Double(Struct, frozen=True, tag_field="type", tag="double"):
    """A number between `minval` and `maxval`, evenly distributed."""

    minval: float
    """The lower bound."""
    maxval: float
    """The upper bound."""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How many values a grid takes, evenly spaced. `grid` needs it, or a `step`."""
    step: Annotated[float, Meta(gt=0)] | None = None
    """The distance between two values, counted from `minval`. By default there is none."""
    when: When | None = None
    """Other hyperparameters, by dotted names, and the value that each must have, or a list of such.

    Else it is absent.
    """


class Log(Struct, frozen=True, tag_field="type", tag="log"):
    """`base` to the power of a number between `minval` and `maxval`: the bounds are exponents."""

    minval: float
    """The lower exponent."""
    maxval: float
    """The upper exponent."""
    base: Annotated[float, Meta(gt=0)] = 10.0
    """What is raised to the exponent."""
    count: Annotated[int, Meta(ge=1)] | None = None
    """How many values a grid takes, evenly spaced in the exponent. `grid` needs it."""
    when: When | None = None
    """Other hyperparameters, by dotted names, and the value that each must have, or a list of such.

    Else it is absent.
    """


class Categorical(Struct, frozen=True, tag_field="type", tag="categorical"):
    """One of `vals`, all equally likely."""

    vals: Annotated[tuple[Any, ...], Meta(min_length=1)]
    """The values to choose from."""
    ordered: bool = False
    """Whether neighbours in the list are alike, such as sizes.

    Samplers that learn make use of it.
    """
    when: When | None = None
    """Other hyperparameters, by dotted names, and the value that each must have, or a list of such.

    Else it is absent.
    """


if TYPE_CHECKING:
    Hyperparameter = Const | Int | Double | Log | Categorical | dict[str, "Hyperparameter"]
else:
    # typing cannot evaluate an alias that contains itself.
    Hyperparameter = Const | Int | Double | Log | Categorical | dict

RANGES: dict[str, type[Struct]] = {
    "const": Const,
    "int": Int,
    "double": Double,
    "log": Log,
    "categorical": Categorical,
}


class SearcherConfig(Struct, frozen=True, kw_only=True, tag_field="name"):
    """The settings that all searchers share. Your own searcher derives its settings from it."""

    metric: Annotated[
        str, needed("name the validation metric that ranks the trials, such as validation_loss")
    ]
    """The validation metric by which trials and checkpoints are ranked."""
    smaller_is_better: bool = True
    """Whether a smaller value of the metric is the better one."""
    source_trial_id: int | None = None
    """Start every trial from the latest checkpoint of this trial, counters at zero.

    Wins over the next one.
    """
    source_checkpoint_uuid: str | None = None
    """Start every trial from this checkpoint, counters at zero."""
    max_hours: Annotated[float, Meta(gt=0)] | None = None
    """Stop the search so many hours after it began, pauses included.

    Running trials save, and count as complete.
    """
    max_epochs_total: Annotated[int, Meta(ge=1)] | None = None
    """Stop the search when its trials have trained so many epochs in all.

    Lengths are in epochs then.
    """
    stop_when: str | None = None
    """Stop the search when a validation meets this condition, such as `accuracy > 0.97`."""
    learn_from: tuple[int, ...] = ()
    """Earlier experiments whose results the sampler begins with.

    The samplers evolution, tpe and gp learn from them.
    """
    constraints: tuple[str, ...] = ()
    """Conditions between hyperparameters, such as `hidden * layers <= 1024`.

    Only choices that meet all of them are proposed.
    """

    @property
    def name(self) -> str:
        """The name under which the searcher is registered."""
        return str(self.__struct_config__.tag)


class Single(SearcherConfig, frozen=True, tag="single"):
    """One trial. Every hyperparameter that is a range is sampled once."""

    max_length: Amount | None = None
    """How long to train. A trial class needs it, a script may know by itself."""


class Random(SearcherConfig, frozen=True, tag="random"):
    """Independent samples of the hyperparameters."""

    max_trials: Trials
    """How many trials to make."""
    max_concurrent_trials: Concurrent = 16
    """How many trials may run at once. 0 means all."""
    max_length: Amount | None = None
    """How long to train each trial. A trial class needs it."""


class Grid(SearcherConfig, frozen=True, tag="grid"):
    """Every combination of the hyperparameters. `int`, `double` and `log` ranges need a `count`."""

    max_concurrent_trials: Concurrent = 16
    """How many trials may run at once. 0 means all."""
    max_length: Amount | None = None
    """How long to train each trial. A trial class needs it."""


class Rungs(SearcherConfig, frozen=True, kw_only=True):
    """The settings of all searchers that train some trials longer than others."""

    max_length: Amount | None = None
    """How long the best trials train. The promoting kind."""
    max_time: MaxTime | None = None
    """How long the best trials train, in units of `time_metric`. The stopping kind."""
    time_metric: str | None = None
    """The validation metric that says how long a trial has trained, such as batches or epochs."""
    divisor: Divisor = 4.0
    """Of the trials of a rung, one in this many goes on to the next."""
    max_concurrent_trials: Concurrent = 16
    """How many trials may run at once. 0 lets the searcher choose."""
    stop_once: bool | None = None
    """With `max_length`: true takes the stopping kind instead of the promoting one."""
    use_idle_slots: bool = False
    """Whether further trials use the slots that become free while the last trials train.

    They end with the last one.
    """


class Halving(Rungs, frozen=True, kw_only=True):
    """The settings of all kinds of asynchronous successive halving."""

    max_trials: Trials
    """How many trials to make, over all brackets."""
    sampler: Sampler = "random"
    """How hyperparameters are chosen: at random, or by altering those of the best trials."""


class AdaptiveAsha(Halving, frozen=True, tag="adaptive_asha"):
    """Several brackets of asynchronous successive halving (Li et al. 2018, 2020).

    With `max_length` the promoting kind, which pauses trials and resumes the promising ones. With
    `max_time` and `time_metric` the stopping kind, which ends the others early.
    """

    mode: Mode = "standard"
    """How many trials are stopped early: aggressive, standard or conservative."""
    max_rungs: Annotated[int, Meta(ge=1)] = 5
    """The most rungs that a bracket may have."""
    bracket_rungs: tuple[Annotated[int, Meta(ge=1)], ...] = ()
    """The rungs of each bracket, instead of what `mode` and `max_rungs` give."""


class AsyncHalving(Halving, frozen=True, tag="async_halving"):
    """One bracket of asynchronous successive halving (Li et al. 2020).

    Kinds as in `adaptive_asha`.
    """

    num_rungs: Annotated[int, Meta(ge=1), needed("give the number of rungs")]
    """How many rungs there are. With 1, every trial trains to the end."""


class Combined(Rungs, frozen=True, tag="combined"):
    """A sampler that chooses hyperparameters, and a schedule that says how long each trial trains.

    `name` may be left out where there is a `sampler` or a `schedule`.
    """

    sampler: str = "random"
    """random, grid, sobol, evolution, one of a plugin, or your own as `module:Class`.

    Those of plugins are tpe, gp, cmaes, qmc and nsgaii.
    """
    sampler_options: dict[str, Any] = {}
    """Further settings of the sampler, by its own names."""
    schedule: Literal["full", "async_halving", "adaptive_asha", "hyperband"] = "full"
    """Every trial to the end, one bracket of asynchronous halving, several, or Hyperband's.

    Those of Hyperband run one after the other.
    """
    max_trials: Annotated[int, Meta(ge=1)] | None = None
    """How many trials to make. A grid and Hyperband know it by themselves."""
    divisor: Divisor = 3.0
    """Of the trials of a rung, one in this many goes on to the next."""
    num_rungs: Annotated[int, Meta(ge=1)] = 3
    """How many rungs `async_halving` has."""
    mode: Mode = "standard"
    """How many trials `adaptive_asha` stops early: aggressive, standard or conservative."""
    max_rungs: Annotated[int, Meta(ge=1)] = 5
    """The most rungs that a bracket of `adaptive_asha` may have."""
    bracket_rungs: tuple[Annotated[int, Meta(ge=1)], ...] = ()
    """The rungs of each bracket of `adaptive_asha`, instead of what `mode` and `max_rungs` give."""


class Auto(SearcherConfig, frozen=True, tag="auto"):
    """Chooses a sampler and a schedule by the space, the number of trials and their length.

    It says why.
    """

    max_trials: Annotated[int, Meta(ge=1)] | None = None
    """How many trials to make. Needed unless there is `max_hours`."""
    max_length: Amount | None = None
    """How long the best trials train. Without it, each trial ends by itself."""
    max_concurrent_trials: Concurrent = 16
    """How many trials may run at once. 0 lets the searcher choose."""
    choice: Annotated[int, Meta(ge=1, le=2)] = 2
    """The version of the choice. An experiment keeps the one that it began with."""


class ReplaceFunction(Struct, frozen=True, kw_only=True):
    """How population-based training replaces trials between rounds."""

    truncate_fraction: Annotated[float, Meta(ge=0, le=0.5)] = 0.2
    """Which share of the population is replaced by copies of the best."""


class ExploreFunction(Struct, frozen=True, kw_only=True):
    """How population-based training changes the hyperparameters of a copy."""

    resample_probability: Probability = 0.2
    """How likely a hyperparameter is drawn again."""
    perturb_factor: Probability = 0.2
    """By which share a hyperparameter that is not drawn again grows or shrinks."""


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

    max_length: Annotated[
        Amount, needed("give the length of the longest trials, such as {epochs: 27}")
    ]
    """How long the best trials train."""
    divisor: Divisor = 3.0
    """Of the trials of a rung, one in this many goes on to the next."""


class Custom(SearcherConfig, frozen=True, tag="custom"):
    """A searcher of one's own, from the code directory. Every other key is handed to it."""

    entrypoint: Annotated[
        str, Meta(pattern=r"^[\w.]+:[\w.]+$"), needed("name your searcher as module:Class")
    ]
    """The searcher, as `module:Class`."""
    options: Annotated[dict[str, Any], REST] = {}
    """The other keys of the section, as they are written."""


class UnknownSearcher(Struct, frozen=True):
    """A plugin's searcher, read without the plugin. Its keys are kept as written."""

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
    "auto": Auto,
    "combined": Combined,
    "custom": Custom,
    "grid": Grid,
    "hyperband": Hyperband,
    "pbt": Pbt,
    "random": Random,
    "single": Single,
}
