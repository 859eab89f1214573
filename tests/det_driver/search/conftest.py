from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from det_driver.search import Close, Create, Exit, Operation, Searcher, Shutdown, Train

Lengths = dict[int, list[int]]


def train(
    searcher: Searcher, metric: Callable[[int], float] = float, exits: dict[int, Exit] | None = None
) -> tuple[Lengths, Shutdown]:
    """Run a search, one report at a time in the order of asking.

    Return the lengths at which each trial reported.

    `metric` gives a trial's; those in `exits` end instead of reporting for the first time.
    """
    exits = exits or {}
    reports: Lengths = {}
    due: deque[Train] = deque()

    def obey(operations: list[Operation]) -> Shutdown | None:
        for operation in operations:
            match operation:
                case Create(trial=trial):
                    reports[trial] = []
                case Train():
                    due.append(operation)
                case Close(trial=trial):
                    operations += searcher.exited(trial, Exit.COMPLETED)
                case Shutdown():
                    return operation
        return None

    over = obey(searcher.start())
    while due:
        trial, until = due[0].trial, due.popleft().until
        assert until is not None
        if trial in exits and not reports[trial]:
            over = obey(searcher.exited(trial, exits[trial]))
            continue
        reports[trial].append(until)
        metrics = {searcher.metric or "loss": metric(trial)}
        if searcher.time_metric is not None:
            metrics[searcher.time_metric] = until
        over = obey(searcher.validated(trial, until, metrics))
    assert over is not None, "the search did not shut down"
    return reports, over


@pytest.fixture(name="train", scope="session")
def train_fixture() -> Callable[..., tuple[Lengths, Shutdown]]:
    return train
