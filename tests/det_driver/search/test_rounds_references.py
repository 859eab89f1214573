"""Searches in rounds against naive references: hyperband's halving and pbt's generations."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.det_driver.search.references import Decision, compare

from det_core.config import Double, Int, Length, Pbt, ReplaceFunction
from det_driver.search import Exit, Objective, make
from det_driver.search._hyperband import Rung, SyncHalving
from det_driver.search._search import Search
from det_driver.search.base import WORST

SPACE = {"lr": Double(minval=0, maxval=1), "n": Int(minval=1, maxval=9)}
QUICK = settings(max_examples=80, deadline=None)


class Halving:
    """All of a rung report, or end; then the best of them go on."""

    def __init__(self, rungs: list[Rung]) -> None:
        self.rungs, self.rung, self.created = rungs, 0, rungs[0].trials
        self.awaited = set(range(self.created))
        self.losses: dict[int, float] = {}

    def start(self) -> list[Decision]:
        return [each for trial in range(self.created) for each in self.create(trial)]

    def create(self, trial: int) -> list[Decision]:
        return [("create", trial, None), ("train", trial, self.rungs[0].length)]

    def validated(self, trial: int, length: int, loss: float) -> list[Decision]:
        if trial not in self.awaited or length < self.rungs[self.rung].length:
            return []
        self.awaited.remove(trial)
        if self.rung == len(self.rungs) - 1:
            return [("close", trial, None)]
        self.losses[trial] = loss
        return self.follow()

    def exited(self, trial: int, reason: Exit) -> list[Decision]:
        self.losses.pop(trial, None)
        if trial not in self.awaited:
            return []
        self.awaited.remove(trial)
        if reason is Exit.INVALID_HP and self.rung == 0:
            self.awaited.add(self.created)
            self.created += 1
            return self.create(self.created - 1)
        return self.follow()

    def follow(self) -> list[Decision]:
        if self.awaited or self.rung == len(self.rungs) - 1:
            return []
        self.rung += 1
        ranking = sorted(self.losses, key=lambda trial: (self.losses[trial], trial))
        best, others = (
            ranking[: self.rungs[self.rung].trials],
            ranking[self.rungs[self.rung].trials :],
        )
        self.awaited, self.losses = set(best), {}
        trains = [("train", trial, self.rungs[self.rung].length) for trial in best]
        return [*(("close", trial, None) for trial in others), *trains]


RUNGS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 40)),
    min_size=1,
    max_size=4,
    unique_by=lambda r: r[1],
)


@QUICK
@given(rungs=RUNGS, smaller=st.booleans(), data=st.data())
def test_halving_decides_as_its_reference(
    rungs: list[tuple[int, int]], smaller: bool, data: st.DataObject
) -> None:
    trials, lengths = zip(*rungs, strict=True)
    ordered = [
        Rung(*each) for each in zip(sorted(trials, reverse=True), sorted(lengths), strict=True)
    ]
    searcher = Search(SyncHalving(Objective("loss", smaller), ordered), SPACE, 0)
    compare(searcher, Halving(ordered), data, smaller_is_better=smaller)


class Generations:
    """All members report, or end; then the worst give way to copies of the best."""

    def __init__(self, size: int, rounds: int, truncated: int) -> None:
        self.size, self.left, self.truncated, self.created = size, rounds, truncated, 0
        self.age: dict[int, int] = {}  # of each member, in rounds
        self.losses: dict[int, float] = {}
        self.gone: set[int] = set()

    def start(self) -> list[Decision]:
        return [each for _ in range(self.size) for each in self.create(None)]

    def create(self, source: int | None) -> list[Decision]:
        trial, self.created = self.created, self.created + 1
        self.age[trial] = 1
        return [("create", trial, source), ("train", trial, 10)]

    def validated(self, trial: int, length: int, loss: float) -> list[Decision]:
        if trial in self.losses or length < 10 * self.age[trial]:
            return []
        self.losses[trial] = loss
        return self.follow()

    def exited(self, trial: int, reason: Exit) -> list[Decision]:
        reported = trial in self.losses
        self.gone.add(trial)
        self.losses[trial] = WORST
        return [] if reported else self.follow()

    def follow(self) -> list[Decision]:
        if set(self.losses) != set(self.age):
            return []
        self.left -= 1
        ranking = sorted(self.losses, key=lambda trial: (self.losses[trial], trial))
        stay = ranking[: max(len(ranking) - self.truncated, 0)] if self.left else []
        decisions: list[Decision] = []
        for trial in ranking:
            if trial not in stay:
                del self.age[trial]
                decisions += [("close", trial, None)] * (trial not in self.gone)
        parents = ranking[: self.truncated] if self.left else []
        decisions += [
            each for trial in parents if trial not in self.gone for each in self.create(trial)
        ]
        for trial in stay:
            if trial not in self.gone:
                self.age[trial] += 1
                decisions.append(("train", trial, 10 * self.age[trial]))
        self.losses = {trial: WORST for trial in self.age if trial in self.gone}
        return decisions


@QUICK
@given(
    size=st.integers(1, 6),
    rounds=st.integers(1, 4),
    fraction=st.sampled_from([0.0, 0.2, 0.34, 0.5]),
    smaller=st.booleans(),
    data=st.data(),
)
def test_pbt_decides_as_its_reference(
    size: int, rounds: int, fraction: float, smaller: bool, data: st.DataObject
) -> None:
    config = Pbt(
        metric="loss",
        smaller_is_better=smaller,
        population_size=size,
        num_rounds=rounds,
        length_per_round=Length("batches", 10),
        replace_function=ReplaceFunction(truncate_fraction=fraction),
    )
    reference = Generations(size, rounds, int(fraction * size))
    compare(make(config, SPACE, 0), reference, data, smaller_is_better=smaller)
