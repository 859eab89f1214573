"""A single bracket of ASHA, of the kind that the configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping

from det_core.config import AdaptiveAsha, AsyncHalving, Hyperparameter
from det_core.errors import ConfigError

from ._asha_promotion import PromotionASHA
from ._asha_stopping import StoppingASHA
from ._lengths import length_of
from ._method import Method
from ._objective import Objective
from ._rungs import initial_trials, rung_lengths
from ._search import Search


def make(config: AsyncHalving, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> Search:
    """Return one bracket of asynchronous successive halving."""
    method = asha_bracket(config, config.num_rungs, config.max_trials, config.max_concurrent_trials)
    return Search(method, hyperparameters, seed)


def asha_bracket(
    config: AsyncHalving | AdaptiveAsha, num_rungs: int, max_trials: int, max_concurrent_trials: int
) -> Method:
    """Return a bracket: stopping by `max_time`, or with `stop_once`; else promotion by `max_length`."""
    objective = Objective(config.metric, config.smaller_is_better)
    lengths = rung_lengths(num_rungs, config.divisor, longest(config))
    initial = initial_trials(max_concurrent_trials, max_trials, config.divisor, num_rungs)
    if config.max_time is None and not config.stop_once:
        return PromotionASHA(
            objective, lengths=lengths, divisor=config.divisor, max_trials=max_trials, initial_trials=initial
        )
    return StoppingASHA(
        objective,
        lengths=lengths,
        divisor=config.divisor,
        max_trials=max_trials,
        initial_trials=initial,
        time_metric=None if config.max_time is None else config.time_metric,
    )


def longest(config: AsyncHalving | AdaptiveAsha) -> int:
    """Return how long the best trials train: `max_time` in units of `time_metric`, else `max_length`."""
    if config.max_time is not None:
        if config.time_metric is None:
            raise ConfigError(
                f"searcher.max_time is {config.max_time}, but there is no time_metric; name the validation metric "
                "that says how long a trial has trained, such as batches"
            )
        return config.max_time
    if config.max_length is None:
        raise ConfigError(f"searcher {config.name} has no length; give max_length, or max_time and time_metric")
    return length_of(config.max_length, "searcher.max_length")
