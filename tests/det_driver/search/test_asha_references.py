"""Asynchronous successive halving against naive references, written from the paper.

Every decision is the same.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.det_driver.search.references import Decision, compare

from det_core.config import AsyncHalving, Double, Length
from det_driver.search import Exit, make
from det_driver.search.base import WORST

LENGTH = 64
SETTINGS = st.fixed_dictionaries(
    {
        "num_rungs": st.sampled_from([1, 2, 3, 3, 4, 4]),
        "max_trials": st.integers(1, 14),
        "max_concurrent_trials": st.integers(1, 6),
        "divisor": st.sampled_from([2.0, 2.0, 2.5, 3.0, 4.0]),
        "smaller_is_better": st.booleans(),
    }
)


class Reference:
    """What both kinds have in common.

    Rungs are plain lists, and nothing is remembered that can be counted.
    """

    def __init__(self, given: dict[str, Any], lengths: list[int]) -> None:
        self.lengths, self.divisor, self.most = lengths, given["divisor"], given["max_trials"]
        self.first = min(given["max_concurrent_trials"], self.most)
        self.rungs: list[list[tuple[float, int]]] = [
            [] for _ in lengths
        ]  # losses and trials, as they came
        self.created = self.invalid = 0
        self.under_way: dict[int, int] = {}  # trials, and the rung to which they train

    def start(self) -> list[Decision]:
        return [decision for _ in range(self.first) for decision in self.create()]

    def create(self) -> list[Decision]:
        trial, self.created = self.created, self.created + 1
        self.under_way[trial] = 0
        return [("create", trial, None), ("train", trial, self.lengths[0])]

    def one_more(self) -> list[Decision]:
        return self.create() if self.created - self.invalid < self.most else []

    def replace(self, trial: int) -> list[Decision]:
        self.invalid += 1
        self.rungs = [[entry for entry in rung if entry[1] != trial] for rung in self.rungs]
        return self.create()


class Promoting(Reference):
    """A trial waits at its rung until it comes to be among the best 1/divisor of it."""

    def __init__(self, given: dict[str, Any], lengths: list[int]) -> None:
        super().__init__(given, sorted(set(lengths)))
        self.waiting: dict[int, int] = {}
        self.gone: set[int] = set()
        self.promoted: set[tuple[int, int]] = set()

    def validated(self, trial: int, length: int, loss: float) -> list[Decision]:
        rung = self.under_way.get(trial)
        if rung is None or length < self.lengths[rung]:
            return []
        del self.under_way[trial]
        if rung == len(self.lengths) - 1:
            self.rungs[rung].append((loss, trial))
            return [("close", trial, None), *self.follow(None)]
        self.waiting[trial] = rung
        return self.follow(self.enter(trial, rung, loss))

    def exited(self, trial: int, reason: Exit) -> list[Decision]:
        if trial in self.waiting:
            del self.waiting[trial]
            self.gone.add(trial)
            return []
        rung = self.under_way.pop(trial)
        if reason is Exit.INVALID_HP:
            return self.replace(trial)
        self.gone.add(trial)
        return self.follow(self.enter(trial, rung, WORST))

    def best(self, rung: int) -> set[int]:
        ranking = sorted(
            self.rungs[rung], key=lambda entry: entry[0]
        )  # of equals, the first to come
        return {trial for _, trial in ranking[: int(len(ranking) / self.divisor)]}

    def enter(self, trial: int, rung: int, loss: float) -> Decision | None:
        before = self.best(rung)
        self.rungs[rung].append((loss, trial))
        if rung == len(self.lengths) - 1:
            return None
        for better in self.best(rung) - before:
            if (rung, better) in self.promoted:
                continue
            self.promoted.add((rung, better))
            if better in self.gone:
                return self.enter(better, rung + 1, WORST)
            del self.waiting[better]
            self.under_way[better] = rung + 1
            return "train", better, self.lengths[rung + 1]
        return None

    def follow(self, promotion: Decision | None) -> list[Decision]:
        decisions = [promotion] if promotion else self.one_more()
        if len(self.rungs[0]) == self.most:
            for rung in range(len(self.lengths)):
                if rung in self.under_way.values():
                    break
                for trial in [trial for trial, at in self.waiting.items() if at == rung]:
                    del self.waiting[trial]
                    self.promoted.add((rung, trial))  # it was left behind for good
                    decisions.append(("close", trial, None))
        return decisions


class Stopping(Reference):
    """A trial goes on past a rung while it is among the best 1/divisor of those before it."""

    def validated(self, trial: int, length: int, loss: float) -> list[Decision]:
        rung = before = self.under_way[trial]
        while length >= self.lengths[rung]:
            better = sum(other < loss for other, _ in self.rungs[rung])
            self.rungs[rung].append((loss, trial))
            if rung == len(self.lengths) - 1 or better >= max(
                int(len(self.rungs[rung]) / self.divisor), 1
            ):
                del self.under_way[trial]
                return [("close", trial, None), *self.one_more()]
            rung += 1
        self.under_way[trial] = rung
        return [("train", trial, self.lengths[rung])] if rung > before else []

    def exited(self, trial: int, reason: Exit) -> list[Decision]:
        rung = self.under_way.pop(trial)
        if reason is Exit.INVALID_HP:
            return self.replace(trial)
        if reason is not Exit.COMPLETED:
            self.rungs[rung].append((WORST, trial))
        return self.one_more()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["promotes", "stops by length", "stops by time"])
@settings(max_examples=100, deadline=None)
@given(given=SETTINGS, data=st.data())
def test_every_decision_equals_that_of_the_reference(
    kind: str, given: dict[str, Any], data: st.DataObject
) -> None:
    """Reports early, in time and late, with losses that are often equal.

    Ends for every reason, of trials that wait, too.
    """
    by_time = kind == "stops by time"
    length = (
        {"max_time": LENGTH, "time_metric": "t"}
        if by_time
        else {"max_length": Length("batches", LENGTH)}
    )
    config = AsyncHalving(metric="loss", stop_once=kind == "stops by length", **length, **given)
    searcher = make(config, {"lr": Double(minval=0, maxval=1)}, 0)
    lengths = [
        max(int(LENGTH / given["divisor"] ** up), 1) for up in reversed(range(given["num_rungs"]))
    ]
    reference = (Promoting if kind == "promotes" else Stopping)(given, lengths)
    compare(searcher, reference, data, smaller_is_better=given["smaller_is_better"])
