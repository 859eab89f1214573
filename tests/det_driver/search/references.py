"""Plays a searcher and a naive reference side by side: they have to decide alike."""

from __future__ import annotations

import math
from itertools import count
from typing import Protocol

from hypothesis import strategies as st

from det_driver.search import Close, Create, Exit, Operation, Searcher, Shutdown, Train
from det_driver.search.base import WORST

EVENTS = 60  # that are drawn; what follows comes in order
MOST = 2_000
Decision = tuple[str, int, int | None]
"""What is done with which trial: trained until when, or created from whom."""


class Reference(Protocol):
    """A search method written as plainly as can be; it hears of open trials only."""

    def start(self) -> list[Decision]: ...

    def validated(self, trial: int, length: int, loss: float) -> list[Decision]: ...

    def exited(self, trial: int, reason: Exit) -> list[Decision]: ...


def plain(operations: list[Operation]) -> list[Decision]:
    found: list[Decision] = []
    for operation in operations:
        match operation:
            case Create(trial=trial, source=source):
                found.append(("create", trial, source))
            case Train(trial=trial, until=until):
                found.append(("train", trial, until))
            case Close(trial=trial):
                found.append(("close", trial, None))
    return found


def compare(
    searcher: Searcher, reference: Reference, data: st.DataObject, *, smaller_is_better: bool = True
) -> None:
    """Draw what happens, in whatever order.

    Reports early, in time and late, of trials that wait too, and every end.
    """
    going, closed = dict[int, int](), set[int]()
    # Where many fail they are among the best, too: of ten events how many are ends, and how many
    # trials fail to begin with.
    ending, failing = (
        data.draw(st.sampled_from([0, 1, 4, 7])),
        data.draw(st.sampled_from([0, 0, 2, 4, 6])),
    )

    def obey(decisions: list[Decision]) -> None:
        for what, trial, until in decisions:
            if what == "close":
                closed.add(trial)
            else:
                going[trial] = until or 0

    answer = plain(searcher.start())
    assert answer == reference.start()
    obey(answer)
    operations: list[Operation] = []
    for step in count():
        if not going:
            break
        assert step < MOST, f"the search does not end; going: {going}, closed: {closed}"
        drawn = step < EVENTS
        trial = (
            data.draw(st.sampled_from(sorted(going))) if drawn else sorted(going)[step % len(going)]
        )
        if trial in closed:
            del going[trial]
            operations, expected = searcher.exited(trial, Exit.COMPLETED), list[Decision]()
        elif step < failing or (drawn and data.draw(st.integers(0, 9)) < ending):
            reasons = [Exit.COMPLETED, Exit.ERRORED, Exit.USER_STOPPED, Exit.INVALID_HP]
            reason = Exit.ERRORED if step < failing else data.draw(st.sampled_from(reasons))
            del going[trial]
            operations, expected = searcher.exited(trial, reason), reference.exited(trial, reason)
        else:
            at = max(
                0,
                going[trial]
                + (data.draw(st.sampled_from([0, 0, 0, 0, -1, 1, 30])) if drawn else 0),
            )
            value = (
                data.draw(st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, math.nan]))
                if drawn
                else float(trial)
            )
            metrics = {"loss": value} | ({searcher.time_metric: at} if searcher.time_metric else {})
            operations = searcher.validated(trial, 0 if searcher.time_metric else at, metrics)
            loss = WORST if math.isnan(value) else value if smaller_is_better else -value
            expected = reference.validated(trial, at, loss)
        answer = plain(operations)
        assert answer == expected
        obey(answer)
    assert isinstance(operations[-1], Shutdown)
