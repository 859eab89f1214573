from __future__ import annotations

from collections.abc import Callable

import pytest

from det_core.errors import StoreError
from det_driver.store import ExperimentRow, Store
from det_driver.store._journal import PAGE


def test_events_are_numbered_from_one_in_each_experiment(
    store: Store, experiment: ExperimentRow, another: Callable[[], ExperimentRow]
) -> None:
    other = another()

    assert [
        store.journal.append(experiment.id, event) for event in ('{"a": 1}', b'{"b":"\xc3\xbc"}')
    ] == [1, 2]
    assert store.journal.append(other.id, "{}") == 1

    found = [*store.journal.read(experiment.id)]
    assert [(event.seq, event.data) for event in found] == [
        (1, b'{"a": 1}'),
        (2, b'{"b":"\xc3\xbc"}'),
    ]
    assert found[0].time <= found[1].time
    assert [event.seq for event in store.journal.read(experiment.id, after=1)] == [2]


def test_a_journal_of_several_pages_is_read_whole(store: Store, experiment: ExperimentRow) -> None:
    with store.transaction():
        for _ in range(2 * PAGE):
            store.journal.append(experiment.id, "{}")

    assert [event.seq for event in store.journal.read(experiment.id)] == [*range(1, 2 * PAGE + 1)]


def test_an_undone_event_leaves_no_gap(store: Store, experiment: ExperimentRow) -> None:
    def append_and_fail() -> None:
        with store.transaction():
            assert store.journal.append(experiment.id, "2") == 2
            raise ZeroDivisionError

    store.journal.append(experiment.id, "1")
    with pytest.raises(ZeroDivisionError):
        append_and_fail()

    assert store.journal.append(experiment.id, "3") == 2


def test_a_journal_without_an_experiment_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match=r"^no experiment 8; det list shows those in "):
        store.journal.append(8, "{}")
