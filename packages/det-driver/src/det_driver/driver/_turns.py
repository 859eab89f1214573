"""How anything is decided: written as one, then taken over in memory, and only when it is committed done, and told."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, Self

from det_core.errors import StoreError, StoreUnwritable
from det_core.plugins import Plugins

from ..store import Store, TrialRow
from ._search import ExperimentView

Effect = Callable[[], object]
_YOUNG = 50_000


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Have the garbage collector look for cycles more rarely inside.

    What the turns of a group put off lives until their commit, and trials to the end: there is nothing to find, and the more
    trials there are, the longer it looks.
    """
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Turns(ABC):
    """The turns in which one experiment's events are taken, alone or several in a commit."""

    view: ExperimentView

    def __init__(self, store: Store, plugins: Plugins) -> None:
        self.store, self.plugins = store, plugins
        self._adopted: list[Effect] = []
        self._then: list[Effect] = []
        self._told: list[Effect] = []
        self._grouped = False
        self._rows: dict[int, TrialRow] = {}
        self.together: Callable[[], AbstractContextManager[None]] = nullcontext
        """In what all is done that was put off by `then`, before anybody observes it."""

    def turn(self) -> Self:
        """Decide and write inside; it is committed at the end, and what was put off by `adopt`, `then` and `observe` follows.

        Where it fails, nothing has happened, in the store or in memory.
        """
        return self

    def __enter__(self) -> None:
        self._began = len(self._then), len(self._told)
        self._written = self.store.transaction()
        self._written.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._written.__exit__(kind, error, at)
        except BaseException as failure:
            self._failed(failure)
            raise
        if error is not None:
            self._failed(error)
            return
        adopted, self._adopted = self._adopted, []
        for effect in adopted:
            effect()
        if not self._grouped:
            self._follow_up()

    def _failed(self, error: BaseException) -> None:
        then, told = self._began
        self._adopted.clear()
        del self._then[then:], self._told[told:]
        with suppress(*([StoreError] if isinstance(error, StoreUnwritable) else [])):
            self._read()

    @contextmanager
    def group(self) -> Iterator[None]:
        """Commit the turns inside at once; nothing is done about any of them before. One that fails undoes itself alone.

        So long, the memory is ahead of the store. Where the commit fails, who drives the experiment gives up: whatever was
        heard has not been answered, and the next driver hears it again.
        """
        self._grouped = True
        try:
            with self.store.transaction():
                yield
        except BaseException:
            self._then.clear()
            self._told.clear()
            raise
        finally:
            self._grouped = False
        self._follow_up()

    def adopt(self, effect: Effect) -> None:
        """Take over in memory, at the end of the turn, what it has written."""
        self._adopted.append(effect)

    def then(self, effect: Effect) -> None:
        """Do this when the turn is committed: answer, start, stop."""
        self._then.append(effect)

    def observe(self, hook: str, *, of: int | None = None, ended: int | None = None, **arguments: Any) -> None:
        """Tell the observers of this experiment when the turn is committed, after all that is done about it.

        They see the trial `of` which they are told, which is one object in a commit, and the run that `ended`, as they are then.
        """
        if self.plugins.observed(hook):
            self._told.append(lambda: self._tell(hook, of, ended, arguments))

    def _tell(self, hook: str, trial: int | None, run: int | None, arguments: dict[str, Any]) -> None:
        if trial is not None:
            arguments["trial"] = self._rows[trial] = self._rows.get(trial) or self.store.trials.get(trial)
        if run is not None:
            arguments["run"] = self.store.runs.get(run)
        self.plugins.observe(hook, experiment=self.view, **arguments)

    def _follow_up(self) -> None:
        then, told = [*self._then], [*self._told]
        self._then.clear()
        self._told.clear()
        self._rows.clear()
        with self.together():
            for effect in then:
                effect()
        for effect in told:
            effect()

    @abstractmethod
    def _read(self) -> None:
        """Take from the store what was committed."""
