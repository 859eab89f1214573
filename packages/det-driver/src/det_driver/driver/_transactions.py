"""Transactions of an experiment: how each event is handled.

The store is written, then the memory is updated, and after the commit come the actions and the
notifications.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, Self

from det_core.errors import StoreError, StoreUnwritable
from det_core.hooks import Plugins

from ..store import Run, Store, TrialRow
from ._search import ExperimentView

Effect = Callable[[], object]
_YOUNG = 50_000


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Run Python's garbage collector less often inside the block.

    Actions after a commit live until that commit, and trials until the end. There is no garbage to
    find, and a collection takes longer the more trials there are.
    """
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Transactions(ABC):
    """The transactions that handle one experiment's events, alone or several in one commit."""

    view: ExperimentView

    def __init__(self, store: Store, plugins: Plugins) -> None:
        self.store, self.plugins = store, plugins
        self._applied_later: list[Effect] = []
        self._after_commit: list[Effect] = []
        # The hook, the trial, the run that has ended, and other arguments.
        self._notifications: list[tuple[str, int | None, int | None, dict[str, Any]]] = []
        self._until_commit = ExitStack()
        self._grouped = False
        self._rows: dict[int, TrialRow] = {}
        self._runs: dict[int, Run] = {}
        self.together: Callable[[], AbstractContextManager[None]] = nullcontext
        """The context in which the actions of `after_commit` run, before observers are notified."""

    def transaction(self) -> Self:
        """Start a transaction, which is committed at the end of the block.

        The effects of `apply`, `after_commit` and `observe` follow. If it fails, neither store nor
        memory have changed.
        """
        return self

    def __enter__(self) -> None:
        self._began = len(self._after_commit), len(self._notifications)
        self._written = self.store.transaction()
        self._written.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            self._written.__exit__(kind, error, at)
        except BaseException as failure:
            self._failed(failure)
            raise
        finally:
            if not self._grouped:
                self._until_commit.close()
        if error is not None:
            self._failed(error)
            return
        effects, self._applied_later = self._applied_later, []
        for effect in effects:
            effect()
        if not self._grouped:
            self._follow_up()

    def _failed(self, error: BaseException) -> None:
        after_commit, notifications = self._began
        self._applied_later.clear()
        del self._after_commit[after_commit:], self._notifications[notifications:]
        with suppress(*([StoreError] if isinstance(error, StoreUnwritable) else [])):
            self._read()

    @contextmanager
    def group(self) -> Iterator[None]:
        """Commit the transactions inside the block together. Actions and notifications follow.

        A transaction that fails is rolled back alone. Until the commit, the memory is ahead of the
        store. If the commit fails, the driver ends: no event has got a reply, so the next driver
        receives all of them again.
        """
        self._grouped = True
        try:
            with self.store.transaction():
                yield
        except BaseException:
            self._after_commit.clear()
            self._notifications.clear()
            raise
        finally:
            self._grouped = False
            self._until_commit.close()
        self._follow_up()

    def apply(self, effect: Effect) -> None:
        """Update the memory at the end of the transaction."""
        self._applied_later.append(effect)

    def enter_until_commit(self, context: AbstractContextManager[object]) -> None:
        """Enter a context that is left when the transaction is committed, or fails to be."""
        self._until_commit.enter_context(context)

    def after_commit(self, effect: Effect) -> None:
        """Act after the commit: reply, start or stop."""
        self._after_commit.append(effect)

    def observe(
        self, hook: str, *, of: int | None = None, ended: int | None = None, **arguments: Any
    ) -> None:
        """Notify observers after the commit and after all actions.

        They get the id of the trial `of`, and its row and that of the run `ended` as they are then.
        All notifications of a commit share one object per trial.
        """
        if self.plugins.observed(hook):
            self._notifications.append((hook, of, ended, arguments))

    def _notify(
        self,
        hook: str,
        trial: int | None,
        run: int | None,
        arguments: dict[str, Any],
        *,
        shows_trial: bool,
    ) -> None:
        if trial is not None:
            arguments["trial_id"] = trial
            if shows_trial:
                arguments["trial"] = self.trial_row(trial)
        if run is not None:
            arguments["run"] = self._runs.get(run) or self.store.runs.get(run)
        self.plugins.observe(hook, experiment=self.view, **arguments)

    def trial_row(self, trial: int) -> TrialRow:
        """Return the row of a trial while observers are notified, read once for a commit."""
        if trial not in self._rows:
            self._rows[trial] = self.store.trials.get(trial)
        return self._rows[trial]

    def _follow_up(self) -> None:
        after_commit, notifications = [*self._after_commit], [*self._notifications]
        self._after_commit.clear()
        self._notifications.clear()
        with self.together():
            for effect in after_commit:
                effect()
        hooks = {hook for hook, *_ in notifications}
        shown = {hook for hook in hooks if self.plugins.observed(hook, "trial")}
        trials = {of for hook, of, *_ in notifications if of is not None and hook in shown}
        # One query for all trials of a commit, as a commit may have the reports of a hundred.
        self._rows = self.store.trials.read(self.view.id, trials) if len(trials) > 1 else {}
        runs = {ended for *_, ended, _ in notifications if ended is not None}
        self._runs = self.store.runs.read(runs) if len(runs) > 1 else {}
        for hook, of, ended, arguments in notifications:
            self._notify(hook, of, ended, arguments, shows_trial=hook in shown)

    @abstractmethod
    def _read(self) -> None:
        """Read the committed state from the store."""
