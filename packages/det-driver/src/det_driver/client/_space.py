"""The hyperparameters that a search chooses, separate from those that all of its trials share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from det_core.config import Const, Log


class Space:
    """The `hyperparameters` of a configuration, by dotted names such as `net.lr`."""

    def __init__(self, hyperparameters: Mapping[str, Any]) -> None:
        leaves = dict(_leaves(hyperparameters))
        self._constants: dict[str, Any] = {}
        for name, leaf in leaves.items():
            if isinstance(leaf, Const):
                self._constants |= dict(_leaves({name: leaf.val}))
        self._logarithmic = {
            name
            for name, leaf in leaves.items()
            if isinstance(leaf, Log) or getattr(leaf, "log", False)
        }
        self._names = [name for name, leaf in leaves.items() if not isinstance(leaf, Const)]

    def chosen(self, hparams: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chosen hyperparameters of a trial.

        These are all but the constants, and constants that the searcher has changed.
        """
        found = {
            n: v for n, v in _leaves(hparams) if n not in self._constants or self._constants[n] != v
        }
        return {name: found[name] for name in [*self._names, *found] if name in found}

    def names(self, trials: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return the names of the chosen hyperparameters of these trials.

        The names in the configuration come first.
        """
        found = dict.fromkeys(name for hparams in trials for name in self.chosen(hparams))
        return list(dict.fromkeys([*(name for name in self._names if name in found), *found]))

    def columns(self, trials: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """Return the values of each chosen hyperparameter in all trials.

        The value is None for a trial without it.
        """
        flat = [
            dict(_leaves(each)) if dict in map(type, each.values()) else each for each in trials
        ]
        found = dict.fromkeys([*self._names, *(name for each in flat for name in each)])
        columns = {name: [each.get(name) for each in flat] for name in found}
        constant = {name: [value] * len(flat) for name, value in self._constants.items()}
        return {name: column for name, column in columns.items() if constant.get(name) != column}

    def constants(self, hparams: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters of a trial that were not chosen."""
        chosen = self.chosen(hparams)
        return {name: value for name, value in _leaves(hparams) if name not in chosen}

    def logarithmic(self, name: str) -> bool:
        """Return whether a hyperparameter is declared `log`, or an `int` with `log`."""
        return name in self._logarithmic

    @staticmethod
    def short(names: Iterable[str]) -> dict[str, str]:
        """Return for each dotted name the shortest suffix that no other name has."""
        parts = {name: name.split(".") for name in names}
        ends = {
            name: [".".join(words[-k:]) for k in range(1, len(words) + 1)]
            for name, words in parts.items()
        }
        counts = Counter(end for each in ends.values() for end in each)
        return {
            name: next((end for end in each if counts[end] == 1), name)
            for name, each in ends.items()
        }


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
