"""A searcher of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from det_core.config import Custom, Hyperparameter
from det_core.errors import EntrypointError, PluginError

from ._ledger import Ledger
from .base import Exit, Operation, Searcher, Shutdown


def make(config: Custom, hyperparameters: Mapping[str, Hyperparameter], seed: int) -> CustomSearch:
    """Return the searcher that `searcher.entrypoint` names: a class, called with these three arguments.

    The user's code has to be importable already. EntrypointError where there is no such class.
    """
    module, _, path = config.entrypoint.partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise EntrypointError(f"searcher.entrypoint is {config.entrypoint!r}; there is no module {module}") from None
    for name in path.split("."):
        found = getattr(found, name, None)
    if not (isinstance(found, type) and issubclass(found, Searcher)):
        raise EntrypointError(f"searcher.entrypoint is {config.entrypoint!r}; name a class derived from Searcher")
    construct: Callable[..., Searcher] = found
    return CustomSearch(construct(config, hyperparameters, seed))


class CustomSearch(Searcher):
    """Runs a user's searcher, holds it to the contract, and spares it what every search needs.

    Operations that break the contract raise PluginError. A validation of a trial that is closed or has ended does not
    reach it, nor does a second exit. Where every trial has ended and it asks for nothing more, the search shuts down.
    """

    def __init__(self, searcher: Searcher) -> None:
        self.metric = searcher.metric
        self.time_metric = searcher.time_metric
        self._searcher = searcher
        self._ledger = Ledger(type(searcher).__name__)
        self._exits = dict.fromkeys(Exit, 0)

    def start(self) -> list[Operation]:
        operations = self._noted(self._searcher.start())
        if not self._ledger.created and not self._ledger.over:
            raise PluginError(
                f"searcher {type(self._searcher).__name__} starts without a trial; give Create in start()"
            )
        return operations

    def validated(self, trial: int, length: int, metrics: Mapping[str, float]) -> list[Operation]:
        if trial not in self._ledger.open:
            return []
        return self._noted(self._searcher.validated(trial, length, metrics))

    def exited(self, trial: int, reason: Exit) -> list[Operation]:
        if not self._ledger.end(trial):
            return []
        self._exits[reason] += 1
        if self._ledger.over:
            return []
        operations = self._noted(self._searcher.exited(trial, reason))
        if self._ledger.ended == self._ledger.created and not self._ledger.over:
            operations += self._noted([self._shutdown()])
        return operations

    def progress(self, trial_progress: Mapping[int, float]) -> float:
        return self._searcher.progress(trial_progress)

    def state(self) -> dict[str, Any]:
        return {
            "ledger": self._ledger.state(),
            "exits": {reason.value: count for reason, count in self._exits.items()},
            "searcher": self._searcher.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._ledger.restore(state["ledger"])
        self._exits = {Exit(reason): count for reason, count in state["exits"].items()}
        self._searcher.restore(state["searcher"])

    def _noted(self, operations: list[Operation]) -> list[Operation]:
        self._ledger.note(operations)
        return operations

    def _shutdown(self) -> Shutdown:
        return Shutdown(
            failed=self._exits[Exit.ERRORED] == self._ledger.ended,
            cancelled=self._exits[Exit.CANCELED] == self._ledger.ended,
        )
