"""A space of every kind of hyperparameter, and a way through a search without training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from det_core.config import Categorical, Const, Double, Int, Length, Log
from det_driver.search import Create, Exit, Operation, Search
from det_optuna import Optuna
from det_optuna import make as make_search

SPACE = {
    "lr": Log(minval=-5, maxval=0),
    "net": {"hidden": Int(minval=8, maxval=512), "kind": Categorical(vals=("a", [1, 2], None))},
    "dropout": Double(minval=0, maxval=0.7),
    "epochs": Const(3),
}
Make = Callable[..., Search]


def settings(**changes: Any) -> Optuna:
    return Optuna(
        **{"metric": "loss", "max_trials": 20, "max_length": Length("batches", 10), **changes}
    )


@pytest.fixture
def make() -> Make:
    """Make a search from settings that differ from a usual one's."""

    def made(seed: int = 0, space: Any = None, **changes: Any) -> Search:
        return make_search(settings(**changes), SPACE if space is None else space, seed)

    return made


@pytest.fixture
def train() -> Callable[..., list[Create]]:
    """Take each trial of a search to its end, in order.

    `result` says its metrics, or the way in which it ends.
    """

    def train(search: Search, result: Callable[[Create], dict[str, float] | Exit]) -> list[Create]:
        queue, created = search.start(), []
        while queue:
            operation: Operation = queue.pop(0)
            if not isinstance(operation, Create):
                continue
            created.append(operation)
            outcome = result(operation)
            if isinstance(outcome, Exit):
                queue += search.exited(operation.trial, outcome)
            else:
                queue += search.validated(operation.trial, 10, outcome)
                queue += search.exited(operation.trial, Exit.COMPLETED)
        return created

    return train
