"""The settings of the searcher `optuna`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from det_core.config import Length, SearcherConfig

Sampler = Literal["tpe", "gp", "cmaes", "qmc", "nsgaii", "random"]
NEEDED = Meta(extra={"needed": "give the number of trials to make"})
LENGTH = Meta(extra={"kind": "length"})


class Optuna(SearcherConfig, frozen=True, kw_only=True):
    """Hyperparameters suggested by a sampler of Optuna, from the results of the trials so far."""

    max_trials: Annotated[int, Meta(ge=1), NEEDED]
    """How many trials to make."""
    sampler: Sampler = "tpe"
    """Which of Optuna's samplers suggests: tpe, gp, cmaes, qmc, nsgaii or random."""
    max_concurrent_trials: Annotated[int, Meta(ge=0)] = 4
    """How many trials may be open at once; 0 means all.

    Each is suggested without the results of the others.
    """
    max_length: Annotated[Length, LENGTH] | None = None
    """How long to train each trial; a trial class needs it, or `max_time`."""
    max_time: Annotated[int, Meta(ge=1)] | None = None
    """How long to train each trial, in units of `time_metric`."""
    time_metric: str | None = None
    """The validation metric that says how long a trial has trained, such as batches or epochs."""
    startup_trials: Annotated[int, Meta(ge=0)] | None = None
    """How many trials are drawn at random before the sampler learns; of tpe, gp and cmaes.

    Optuna's default.
    """
    second_metric: str | None = None
    """A second validation metric to search for at once, for the best trade-offs."""
    second_smaller_is_better: bool = True
    """Whether a smaller value of the second metric is the better one."""
    sampler_options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the sampler, by the names that Optuna gives them."""
