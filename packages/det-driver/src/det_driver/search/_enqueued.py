"""Checks hyperparameters that a search did not propose, and draws those that are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from det_core.config import Categorical, Const, Double, Hyperparameter, Int, Log
from det_core.errors import ConfigError, did_you_mean

from ..space import Limits, leaves, same
from ._sampling import Draw, RandomState, own

_TRIES = 1000
_TOLERANCE = 1e-9


class Completion:
    """Completes hyperparameters, given by dotted names, with random values for the others."""

    def __init__(
        self, hyperparameters: Mapping[str, Hyperparameter], limits: Limits, draw: Draw
    ) -> None:
        self._leaves = dict(leaves(hyperparameters))
        self._limits = limits
        self._draw = draw

    def completed(self, given: Mapping[str, Any], rng: RandomState) -> dict[str, Any]:
        """Return the hyperparameters of a trial that has what is given.

        ConfigError where there is no such name, a value is not of its range, or conditions and
        constraints allow no such trial.
        """
        values = {name: self._checked(name, value) for name, value in given.items()}
        for _ in range(_TRIES):
            drawn = self._draw(rng)
            for name, value in values.items():
                *outer, last = name.split(".")
                here = drawn
                for part in outer:
                    here = here[part]
                here[last] = own(value)
            # The trial must have all that is given.
            if not self._limits.absent(drawn) & values.keys():
                hparams = self._limits.admit(drawn)
                if hparams is not None:
                    return hparams
            if len(values) == len(self._leaves):
                break
        listed = ", ".join(f"{name}={value}" for name, value in values.items())
        raise ConfigError(
            f"{listed}: conditions and searcher.constraints allow no such trial; give other values"
        )

    def transferred(
        self, hparams: Mapping[str, Any], rng: RandomState, left_out: Counter[str]
    ) -> dict[str, Any] | None:
        """Return a trial of this space with what another space has in common with it.

        What is new is drawn. None where a value is not of its range, or constraints refuse it.
        `left_out` counts the reasons.
        """
        given = {}
        for name, value in hparams.items():
            leaf = self._leaves.get(name)
            if leaf is None:
                left_out[f"{name}, which this search does not have"] += 1
            elif isinstance(leaf, Const):
                if not same(leaf.val, value):
                    left_out[f"{name}, which is always {leaf.val} here"] += 1
            else:
                try:
                    given[name] = self._checked(name, value)
                except ConfigError:
                    left_out[f"trials with {name} out of its range"] += 1
                    return None
        try:
            return self.completed(given, rng)
        except ConfigError:
            left_out["trials that conditions or searcher.constraints do not allow"] += 1
            return None

    def _checked(self, name: str, value: Any) -> Any:
        if name not in self._leaves:
            known = ", ".join(self._leaves) or "none"
            hint = did_you_mean(name, self._leaves) or f"; there are: {known}"
            raise ConfigError(f"there is no hyperparameter {name!r}{hint}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        match self._leaves[name]:
            case Const(val=val):
                fits, range_ = same(val, value), f"it is always {val}"
            case Categorical(vals=vals):
                fits = any(same(each, value) for each in vals)
                range_ = f"give one of {', '.join(map(str, vals))}"
            case Int(minval=low, maxval=high):
                fits = number and value == int(value) and low <= value <= high
                range_, value = (
                    f"give a whole number from {low} to {high}",
                    int(value) if fits else value,
                )
            case Double(minval=low, maxval=high):
                fits, range_ = (
                    number and low <= value <= high,
                    f"give a number from {low} to {high}",
                )
                value = float(value) if fits else value
            case Log(minval=low, maxval=high, base=base):
                low, high = base**low, base**high
                fits = number and low * (1 - _TOLERANCE) <= value <= high * (1 + _TOLERANCE)
                range_, value = (
                    f"give a number from {low:g} to {high:g}",
                    float(value) if fits else value,
                )
        if not fits:
            raise ConfigError(f"{name} is {value!r}, which is not in the space; {range_}")
        return value
