from __future__ import annotations

import json
from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_driver.search import _rungs
from det_driver.search._rungs import Ranking

LOSSES = st.lists(st.integers(0, 20).map(float), max_size=80)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_rungs, "_CHUNK", 4)
        yield


@pytest.mark.parametrize(("behind_ties", "bisect"), [(False, bisect_left), (True, bisect_right)])
@given(losses=LOSSES, removed=st.sets(st.integers(0, 80)))
def test_it_is_a_sorted_list(
    behind_ties: bool, bisect, losses: list[float], removed: set[int]
) -> None:
    ranking, plain = Ranking(), []
    for trial, loss in enumerate(losses):
        rank = bisect([entry[0] for entry in plain], loss)
        plain.insert(rank, (loss, trial))
        assert ranking.insert(loss, trial, behind_ties=behind_ties) == rank
    assert len(losses) < 2 or all(
        2 <= len(chunk) <= 4 for chunk in ranking._losses
    )  # whatever came in which order
    for loss, trial in [entry for entry in plain if entry[1] in removed]:
        plain.remove((loss, trial))
        ranking.remove(loss, trial)
    assert all(ranking._losses) or not plain
    assert len(ranking) == len(plain)
    assert [ranking.at(rank) for rank in range(len(plain))] == [trial for _, trial in plain]
    restored = Ranking()
    restored.insert(1.0, 1, behind_ties=True)
    restored.restore(json.loads(json.dumps(ranking.state())))
    assert (
        restored.state()
        == ranking.state()
        == {
            "losses": [e[0] for e in plain],
            "trials": [e[1] for e in plain],
        }
    )
    assert restored.insert(10.0, 99, behind_ties=behind_ties) == bisect([e[0] for e in plain], 10.0)


def test_insertion_is_correct_after_many_removals() -> None:
    ranking = Ranking()
    for trial in range(40):
        ranking.insert(float(trial), trial, behind_ties=True)
    for trial in range(5, 35):
        ranking.remove(float(trial), trial)
    assert all(ranking._losses)
    assert [ranking.insert(loss, 99, behind_ties=True) for loss in (36.5, 20.0, 3.5)] == [7, 5, 4]


def test_what_is_not_there_is_an_error() -> None:
    ranking = Ranking()
    ranking.insert(1.0, 1, behind_ties=True)
    with pytest.raises(KeyError):
        ranking.remove(1.0, 2)
    with pytest.raises(IndexError):
        ranking.at(1)
