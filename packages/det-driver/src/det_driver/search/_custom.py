"""A user's searcher, and the ledger that checks it against the contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from det_core.errors import EntrypointError, PluginError

from ._search import shutdown
from .base import Close, Create, Exit, Operation, Searcher, Shutdown, Train


def import_class(key: str, name: str, base: type) -> Any:
    """Return the class derived from `base` that the setting `key` names as `module:Class`.

    The user's code must be importable already. Raises EntrypointError if there is no such class.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise EntrypointError(f"{key} is {name!r}; there is no module {module}") from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise EntrypointError(
            f"{key} is {name!r}; name a class derived from det_driver.search.{base.__name__}"
        )
    return found


class CustomSearch(Searcher):
    """Runs a user's searcher, checks it against the contract, and does what every search needs.

    - PluginError: an operation breaks the contract.
    - Validations of a closed or ended trial, and second exits, are not passed to it.
    - The search shuts down when every trial has ended and it requests nothing more.
    """

    def __init__(self, searcher: Searcher) -> None:
        self.metric = searcher.metric
        self.time_metric = searcher.time_metric
        self.version = searcher.version
        self.limits = searcher.limits
        self._searcher = searcher
        self._ledger = Ledger(type(searcher).__name__)
        self._exits: Counter[str] = Counter()

    def start(self) -> list[Operation]:
        operations = self._noted(self._searcher.start())
        if not self._ledger.created and not self._ledger.over:
            raise PluginError(
                f"searcher {type(self._searcher).__name__} starts without a trial; give Create in"
                " start()"
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
            operations += self._noted([shutdown(self._exits)])
        return operations

    def progress(self, trial_progress: Mapping[int, float]) -> float:
        return self._searcher.progress(trial_progress)

    def state(self) -> dict[str, Any] | None:
        searcher = self._searcher.state()
        if searcher is None:
            return None
        return {"ledger": self._ledger.state(), "exits": dict(self._exits), "searcher": searcher}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._ledger.restore(state["ledger"])
        self._exits = Counter(state["exits"])
        self._searcher.restore(state["searcher"])

    def _noted(self, operations: list[Operation]) -> list[Operation]:
        self._ledger.note(operations)
        return operations


class Ledger:
    """Follows the operations of a searcher. PluginError: an operation breaks the contract.

    - Trials are numbered in order of creation.
    - A later `Train` has a larger length.
    - A trial is closed once, and nothing follows for it.

    `name` is the searcher's, for the messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.created = 0
        self.over = False
        self.open: dict[int, int | None] = {}
        """The trials that are neither closed nor ended, with the length to which each may train."""
        self.ended = 0
        # The trials that have not ended.
        self._going: set[int] = set()

    def note(self, operations: Iterable[Operation]) -> None:
        """Check operations in the order in which they were returned."""
        for operation in operations:
            if self.over:
                raise self._error(
                    f"gives {operation} after Shutdown; make Shutdown the last operation"
                )
            match operation:
                case Create():
                    self._create(operation)
                case Train(trial=trial, until=until):
                    self._train(trial, until)
                case Close(trial=trial):
                    self._require_open(trial, "closes")
                    del self.open[trial]
                case Shutdown():
                    self.over = True
                case _:
                    raise self._error(f"gives {operation!r}; give Create, Train, Close or Shutdown")

    def end(self, trial: int) -> bool:
        """Note that a trial has ended. Return False if that was known."""
        self.open.pop(trial, None)
        if trial not in self._going:
            return False
        self._going.remove(trial)
        self.ended += 1
        return True

    def state(self) -> dict[str, Any]:
        """Return the trials and requests so far, in JSON's types."""
        return {
            "open": [[trial, until] for trial, until in self.open.items()],
            "going": sorted(self._going),
            "created": self.created,
            "over": self.over,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state."""
        self.open = dict(state["open"])
        self._going = set(state["going"])
        self.created = state["created"]
        self.ended = self.created - len(self._going)
        self.over = state["over"]

    def _create(self, create: Create) -> None:
        if create.trial != self.created:
            raise self._error(
                f"creates trial {create.trial}; number it {self.created}, in order of creation"
            )
        if not 0 <= create.seed < 2**31:
            raise self._error(
                f"gives trial {create.trial} the seed {create.seed}; draw it from 0 to 2**31 - 1"
            )
        if create.source is not None and not 0 <= create.source < create.trial:
            raise self._error(
                f"starts trial {create.trial} from trial {create.source}; name one that was created"
                " before"
            )
        self.created += 1
        self.open[create.trial] = 0
        self._going.add(create.trial)

    def _train(self, trial: int, until: int | None) -> None:
        self._require_open(trial, "trains")
        before = self.open[trial]
        if before is None or (until is not None and until <= before):
            raise self._error(
                f"trains trial {trial} until {until} after until {before}; lengths are absolute and"
                " grow"
            )
        self.open[trial] = until

    def _require_open(self, trial: int, verb: str) -> None:
        if not 0 <= trial < self.created:
            raise self._error(f"{verb} trial {trial}, which it never created; give Create first")
        if trial not in self.open:
            raise self._error(f"{verb} trial {trial}, which is closed or has ended; leave it alone")

    def _error(self, what: str) -> PluginError:
        return PluginError(f"searcher {self._name} {what}")
