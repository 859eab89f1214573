"""The conditions and constraints of a space. They decide which drawn values become a trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from random import Random
from typing import Any

from det_core.config import Categorical, Const, Double, Hyperparameter, Int, Log
from det_core.errors import ConfigError

from ._conditions import Conditions
from ._expressions import Expression, lookup_in
from ._steps import count_steps, int_at, step_at

MOST_DRAWS = 20_000
"""The number of draws after which a search gives up on its constraints."""


class Limits:
    """Removes absent hyperparameters from drawn values, and rejects values by the constraints.

    `drawn` and `refused` count the calls of `admit` and the rejections.
    """

    def __init__(
        self, hyperparameters: Mapping[str, Hyperparameter], constraints: Sequence[str] = ()
    ) -> None:
        self.constraints = tuple(constraints)
        self.drawn = 0
        self.refused = 0
        self._conditions = Conditions(hyperparameters)
        self._expressions = [Expression(text) for text in constraints]

    def __bool__(self) -> bool:
        return bool(self._conditions) or bool(self._expressions)

    def absent(self, hparams: Mapping[str, Any]) -> set[str]:
        """Return the dotted names of the hyperparameters that a trial with these values lacks."""
        return self._conditions.absent(hparams)

    def prune(self, hparams: dict[str, Any]) -> dict[str, Any]:
        """Remove the hyperparameters that the trial does not have. This changes the given map."""
        return self._conditions.prune(hparams)

    def admit(self, hparams: dict[str, Any]) -> dict[str, Any] | None:
        """Return a trial's hyperparameters from values of all of them.

        Returns None if a constraint rejects them.
        """
        self.drawn += 1
        hparams = self._conditions.prune(hparams)
        if not self._expressions or self.allow(hparams):
            return hparams
        self.refused += 1
        return None

    def check(self, drawn: Mapping[str, Any]) -> bool:
        """Return whether values of all hyperparameters are admitted. They are not changed.

        Raises TypeError if a constraint cannot be evaluated.
        """
        lookup = lookup_in(self._conditions.prune(deepcopy(dict(drawn))))
        return all(expression.holds(lookup) for expression in self._expressions)

    def allow(self, hparams: Mapping[str, Any]) -> bool:
        """Return whether the constraints allow these hyperparameters.

        A comparison of a text with a number counts as a rejection.
        """
        lookup = lookup_in(hparams)
        try:
            return all(expression.holds(lookup) for expression in self._expressions)
        except TypeError:
            return False

    def draw(self, draw: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Draw until values are admitted. Raises ConfigError if that takes too many draws."""
        for _ in range(MOST_DRAWS):
            if (hparams := self.admit(draw())) is not None:
                return hparams
        raise ConfigError(
            f"searcher.constraints refused {MOST_DRAWS:,} choices of hyperparameters in a row;"
            " narrow the ranges to where the constraints hold"
        )


def any_values(hyperparameters: Mapping[str, Hyperparameter], random: Random) -> dict[str, Any]:
    """Return random values of all hyperparameters to inspect a space. A search draws its own."""
    return {name: _any_value(each, random) for name, each in hyperparameters.items()}


def _any_value(hp: Hyperparameter, random: Random) -> Any:
    match hp:
        case Const(val=val):
            return val
        case Categorical(vals=vals):
            return random.choice(vals)
        case Int(log=True):
            return int_at(hp, random.random())
        case Int() | Double() if isinstance(hp, Int) or hp.step is not None:
            return step_at(hp, random.randrange(count_steps(hp)))
        case Double(minval=low, maxval=high):
            return random.uniform(low, high)
        case Log(minval=low, maxval=high, base=base):
            return base ** random.uniform(low, high)
        case _:
            return any_values(hp, random)
