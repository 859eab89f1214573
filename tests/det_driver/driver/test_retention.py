"""Which checkpoints are kept when an experiment ends."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.config import StorageConfig
from det_driver.driver._garbage import to_delete
from det_driver.store import CheckpointRow, CheckpointState

# Determined's documentation works this example: two trials, ten checkpoints, a metric that is best
# when small.
EXAMPLE = {
    1: {1: None, 2: None, 3: 0.6, 4: 0.5, 5: 0.4},
    2: {6: None, 7: 0.2, 8: 0.3, 9: None, 10: None},
}
KEPT = [
    ((0, 0, 0), set()),
    ((2, 0, 0), {8, 7}),
    ((5, 0, 0), {8, 7, 5, 4, 3}),
    ((99, 0, 0), {8, 7, 5, 4, 3}),
    ((0, 1, 0), {7, 5}),
    ((0, 3, 0), {8, 7, 5, 4, 3}),
    ((0, 0, 1), {10, 5}),
    ((0, 0, 3), {10, 9, 8, 5, 4, 3}),
    ((2, 1, 0), {8, 7, 5}),
    ((2, 0, 1), {10, 8, 7, 5}),
    ((0, 1, 1), {10, 7, 5}),
    ((2, 1, 1), {10, 8, 7, 5}),
]


def _row(uuid: str, trial_id: int, batches: int, metric: float | None = None) -> CheckpointRow:
    rest = (CheckpointState.COMPLETED, "", 1, {}, 0.0, "", None, metric)
    return CheckpointRow(uuid, trial_id, 1, batches, *rest)


def _keep(best: int, trial_best: int, latest: int) -> StorageConfig:
    return StorageConfig(
        save_experiment_best=best, save_trial_best=trial_best, save_trial_latest=latest
    )


def _rows(sign: int = 1, missing: float | None = None) -> list[CheckpointRow]:
    return [
        _row(str(number), trial, 100 * number, missing if metric is None else sign * metric)
        for trial, checkpoints in EXAMPLE.items()
        for number, metric in checkpoints.items()
    ]


def _kept(
    rows: list[CheckpointRow], policy: tuple[int, int, int], smaller: bool = True
) -> set[int]:
    gone = to_delete(rows, _keep(*policy), smaller_is_better=smaller)
    return {int(row.uuid) for row in rows if row.uuid not in gone}


@pytest.mark.parametrize(("policy", "kept"), KEPT)
@pytest.mark.parametrize("missing", [None, nan])
def test_the_documented_example(
    policy: tuple[int, int, int], kept: set[int], missing: float | None
) -> None:
    """A metric that is not a number counts as none."""
    assert _kept(_rows(missing=missing), policy) == kept


@pytest.mark.parametrize(("policy", "kept"), KEPT)
def test_the_documented_example_where_larger_is_better(
    policy: tuple[int, int, int], kept: set[int]
) -> None:
    """With the metrics negated, nothing changes."""
    assert _kept(_rows(sign=-1), policy, smaller=False) == kept


def test_infinite_metrics_rank() -> None:
    """They are the worst or the best there is."""
    rows = [
        _row(uuid=u, trial_id=1, batches=n, metric=m)
        for n, (u, m) in enumerate([("1", inf), ("2", 3.0)])
    ]
    assert _kept(rows, (1, 0, 0)) == {2}
    assert _kept(rows, (1, 0, 0), smaller=False) == {1}


def test_zero_is_a_metric_like_another() -> None:
    for other, best in ((0.5, 2), (-0.5, 1)):
        rows = [
            _row(uuid=str(n), trial_id=1, batches=n, metric=m) for n, m in ((1, other), (2, 0.0))
        ]
        assert _kept(rows, (1, 0, 0)) == {best}


def test_of_equal_metrics_the_earlier_is_the_best() -> None:
    """The later one never improved on it."""
    rows = [_row(uuid=str(n), trial_id=1, batches=n, metric=0.5) for n in (3, 1, 2)]
    assert _kept(rows, (1, 0, 0)) == {1}
    assert _kept(rows, (0, 1, 0)) == {1}


def test_the_latest_is_the_one_with_the_most_batches() -> None:
    """In whichever order the rows come."""
    rows = [_row(uuid=str(n), trial_id=1, batches=n) for n in (2, 10, 9)]
    assert _kept(rows, (0, 0, 1)) == {10}


def test_the_protected_stay() -> None:
    """Another trial starts from them."""
    gone = to_delete(_rows(), _keep(1, 0, 0), protected=["1", "elsewhere"])
    assert gone == ["2", "3", "4", "5", "6", "8", "9", "10"]


rows = st.lists(
    st.builds(
        _row,
        uuid=st.uuids().map(str),
        trial_id=st.integers(1, 3),
        batches=st.integers(0, 20),
        metric=st.none() | st.floats(),
    ),
    max_size=15,
    unique_by=lambda row: row.uuid,
)
counts = st.integers(0, 6)


@given(rows, counts, counts, counts, st.booleans())
def test_the_rule_of_determined(
    rows: list[CheckpointRow], best: int, trial_best: int, latest: int, smaller: bool
) -> None:
    """Deleted is what no count covers: the reference states it by ranks, row by row."""

    def rank(row: CheckpointRow, among: list[CheckpointRow]) -> int:
        return 1 + sum(key(other) < key(row) for other in among)

    def key(row: CheckpointRow) -> tuple[float, int, int]:
        assert row.metric is not None
        return (row.metric if smaller else -row.metric, row.batches, rows.index(row))

    numbers = [row for row in rows if row.metric is not None and row.metric == row.metric]
    expected = []
    for row in rows:
        siblings = [other for other in rows if other.trial_id == row.trial_id]
        order = 1 + sum(
            (-o.batches, rows.index(o)) < (-row.batches, rows.index(row)) for o in siblings
        )
        ranked = row in numbers and (
            rank(row, numbers) <= best
            or rank(row, [o for o in siblings if o in numbers]) <= trial_best
        )
        if not ranked and order > latest:
            expected.append(row.uuid)
    gone = to_delete(rows, _keep(best, trial_best, latest), smaller_is_better=smaller)
    assert gone == expected
