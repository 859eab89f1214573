"""Hyperparameters that a trial has only if others have certain values: `when: {optimizer: sgd}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from typing import Any

from det_core.config import Hyperparameter


def leaves(
    hyperparameters: Mapping[str, Hyperparameter], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the hyperparameters that are no maps, by dotted names.

    They are sorted at every depth.
    """
    for name in sorted(hyperparameters):
        each = hyperparameters[name]
        if isinstance(each, Mapping):
            yield from leaves(each, f"{prefix}{name}.")
        else:
            yield prefix + name, each


def same(one: Any, other: Any) -> bool:
    """Return whether two values of a configuration are equal. `true` is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def wanted(value: Any) -> list[Any]:
    """Return the values that a condition allows: those of a list, or a single one."""
    return value if isinstance(value, list) else [value]


class Conditions:
    """Determines which hyperparameters are present, given the values of the others.

    All are drawn, present or not, so that a condition does not change other drawn values. Raises
    CycleError if conditions depend on each other in a circle.
    """

    def __init__(self, hyperparameters: Mapping[str, Hyperparameter]) -> None:
        conditional = {
            name: each.when for name, each in leaves(hyperparameters) if getattr(each, "when", None)
        }
        order = TopologicalSorter(
            {name: list(when) for name, when in conditional.items()}
        ).static_order()
        self._in_order = [(name, conditional[name]) for name in order if name in conditional]

    def __bool__(self) -> bool:
        return bool(self._in_order)

    def absent(self, hparams: Mapping[str, Any]) -> set[str]:
        """Return the dotted names of the hyperparameters that a trial with these values lacks."""
        found: set[str] = set()
        for name, when in self._in_order:
            if not all(
                parent not in found and _has(hparams, parent, value)
                for parent, value in when.items()
            ):
                found.add(name)
        return found

    def prune(self, hparams: dict[str, Any]) -> dict[str, Any]:
        """Remove the hyperparameters that the trial does not have. This changes the given map."""
        for name in self.absent(hparams) if self._in_order else ():
            *outer, last = name.split(".")
            here: Any = hparams
            for part in outer:
                here = here.get(part, {})
            here.pop(last, None)
        return hparams


def _has(hparams: Mapping[str, Any], name: str, value: Any) -> bool:
    here: Any = hparams
    for part in name.split("."):
        if not isinstance(here, Mapping) or part not in here:
            return False
        here = here[part]
    return any(same(here, each) for each in wanted(value))
