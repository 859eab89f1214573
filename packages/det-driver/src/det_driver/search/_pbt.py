"""Population-based training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from det_core.config import Double, Hyperparameter, Int, Log, Pbt

from ..space import Limits, count_steps, step_at
from ._sampling import RandomState, draw_of, own
from ._search import Method, TrialFactory
from .base import WORST, Close, Exit, Objective, Operation, Train

TRIES = 100
"""After so many refused alterations, a copy keeps its parent's hyperparameters."""


class PBT(Method):
    """Trains a population in rounds. After each, altered copies of the best replace the worst.

    A round ends when every member has trained `length` further. Then the worst `truncate_fraction`
    of `population_size` are closed, and as many of the best are copied. A copy is a new trial that
    starts from the checkpoint of its parent, with hyperparameters from `explore`. Its lengths count
    from zero. A trial that fails or raises InvalidHP ranks as the worst until it is truncated.

    Source: Jaderberg et al. 2017, "Population Based Training of Neural Networks", arXiv:1711.09846.
    """

    def __init__(
        self,
        config: Pbt,
        hyperparameters: Mapping[str, Hyperparameter],
        limits: Limits,
        length: int,
    ) -> None:
        self.metric = config.metric
        self._objective = Objective(config.metric, config.smaller_is_better)
        self._config = config
        self._hyperparameters = hyperparameters
        self._limits = limits
        self._length = length
        self._truncate = int(config.replace_function.truncate_fraction * config.population_size)
        self._round = 0
        # Of the members.
        self._hparams: dict[int, dict[str, Any]] = {}
        # The rounds of each member, including the current one.
        self._rounds: dict[int, int] = {}
        # The members that have reported in this round.
        self._losses: dict[int, float] = {}
        # The members that ended early.
        self._gone: set[int] = set()

    def begin(self, factory: TrialFactory) -> list[Operation]:
        return [op for _ in range(self._config.population_size) for op in self._create(factory)]

    def validated(
        self, factory: TrialFactory, trial: int, length: int, metrics: Mapping[str, float]
    ) -> list[Operation]:
        loss = self._objective.loss(metrics)
        if trial in self._losses or length < self._length * self._rounds[trial]:
            return []
        self._losses[trial] = loss
        return self._end_round(factory)

    def exited(
        self, factory: TrialFactory, trial: int, reason: Exit, closed: bool
    ) -> list[Operation]:
        if closed:
            return []
        reported = trial in self._losses
        self._gone.add(trial)
        self._losses[trial] = WORST
        return [] if reported else self._end_round(factory)

    def progress(self, going: Mapping[int, float]) -> float:
        reported = len(self._losses) / len(self._hparams) if self._hparams else 0.0
        return (self._round + reported) / self._config.num_rounds

    def state(self) -> dict[str, Any]:
        return {
            "round": self._round,
            "members": [
                [trial, hparams, self._rounds[trial]] for trial, hparams in self._hparams.items()
            ],
            "losses": [[trial, loss] for trial, loss in self._losses.items()],
            "gone": sorted(self._gone),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._round = state["round"]
        self._hparams = {trial: hparams for trial, hparams, _ in state["members"]}
        self._rounds = {trial: rounds for trial, _, rounds in state["members"]}
        self._losses = dict(state["losses"])
        self._gone = set(state["gone"])

    def _create(
        self,
        factory: TrialFactory,
        hparams: dict[str, Any] | None = None,
        source: int | None = None,
    ) -> list[Operation]:
        create = factory.create(hparams, source)
        self._hparams[create.trial] = own(create.hparams)
        self._rounds[create.trial] = 1
        return [create, Train(create.trial, self._length)]

    def _end_round(self, factory: TrialFactory) -> list[Operation]:
        if len(self._losses) < len(self._hparams):
            return []
        self._round += 1
        best_first = sorted(self._losses, key=lambda trial: (self._losses[trial], trial))
        self._losses.clear()
        if self._round == self._config.num_rounds:
            return self._close(best_first)
        cut = max(len(best_first) - self._truncate, 0)
        operations: list[Operation] = []
        for parent in best_first[: self._truncate]:
            if parent not in self._gone:
                operations += self._create(factory, self._explore(factory, parent), source=parent)
        return self._close(best_first[cut:]) + operations + self._go_on(best_first[:cut])

    def _close(self, trials: list[int]) -> list[Operation]:
        operations: list[Operation] = [Close(trial) for trial in trials if trial not in self._gone]
        for trial in trials:
            del self._hparams[trial], self._rounds[trial]
            self._gone.discard(trial)
        return operations

    def _go_on(self, trials: list[int]) -> list[Operation]:
        operations: list[Operation] = []
        for trial in trials:
            if trial in self._gone:
                self._losses[trial] = WORST
            else:
                self._rounds[trial] += 1
                operations.append(Train(trial, self._length * self._rounds[trial]))
        return operations

    def _explore(self, factory: TrialFactory, trial: int) -> dict[str, Any]:
        how = self._config.explore_function
        old = self._hparams[trial]
        for _ in range(TRIES):
            new = explore(
                self._hyperparameters,
                old,
                factory.rng,
                how.resample_probability,
                how.perturb_factor,
            )
            if (admitted := self._limits.admit(new)) is not None:
                return admitted
        kept: dict[str, Any] = own(old)
        return kept


def explore(
    hyperparameters: Mapping[str, Hyperparameter],
    old: Mapping[str, Any],
    rng: RandomState,
    resample_probability: float,
    perturb_factor: float,
) -> dict[str, Any]:
    """Return hyperparameters near `old`.

    Each one is drawn at random with `resample_probability`, or else multiplied by 1 - or 1 +
    `perturb_factor`. This is done in sorted order at every depth.

    - One that `old` lacks is drawn at random.
    - Ints are rounded away from their old value.
    - All stay within their bounds.
    - Categorical ones change only when they are drawn.
    """
    new = {}
    for name in sorted(hyperparameters):
        hyperparameter = hyperparameters[name]
        if isinstance(hyperparameter, Mapping):
            new[name] = explore(
                hyperparameter, old[name], rng, resample_probability, perturb_factor
            )
        elif name not in old or rng.random() < resample_probability:
            new[name] = draw_of(hyperparameter)(rng)
        else:
            new[name] = _perturb(hyperparameter, own(old[name]), rng.random() < 0.5, perturb_factor)
    return new


def _perturb(hyperparameter: Hyperparameter, value: Any, decrease: bool, factor: float) -> Any:
    multiplier = 1 - factor if decrease else 1 + factor
    match hyperparameter:
        case Int() | Double() if hyperparameter.step is not None:
            return _on_a_step(hyperparameter, value * multiplier, decrease)
        case Int(minval=low, maxval=high):
            rounded = math.floor(value * multiplier) if decrease else math.ceil(value * multiplier)
            return min(max(rounded, low), high)
        case Double(minval=low, maxval=high):
            return min(max(value * multiplier, low), high)
        case Log(minval=low, maxval=high, base=base):
            return min(max(value * multiplier, base**low), base**high)
        case _:
            return value


def _on_a_step(hp: Int | Double, value: float, decrease: bool) -> int | float:
    """Return the step at or beyond a value, away from the old value."""
    place = (value - hp.minval) / (hp.step or 1)
    number = math.floor(place + 1e-9) if decrease else math.ceil(place - 1e-9)
    return step_at(hp, min(max(number, 0), count_steps(hp) - 1))
