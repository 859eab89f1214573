from __future__ import annotations

import itertools
import math
import os
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_core.errors import StoreError
from det_driver.store import ExperimentRow, Store, TrialRow
from det_driver.store._database import Database
from det_driver.store._schema import EXPERIMENT


def test_transaction_is_visible_to_others_only_when_it_ends(
    store: Store, experiment: ExperimentRow
) -> None:
    with Store.reader(store.home) as reader:
        with store.transaction():
            store.journal.append(experiment.id, "{}")
            store.trials.create(experiment.id, 0, {}, seed=0)
            assert [*reader.journal.read(experiment.id)] == reader.trials.list(experiment.id) == []

        assert (
            len([*reader.journal.read(experiment.id)])
            == len(reader.trials.list(experiment.id))
            == 1
        )


def test_an_error_undoes_the_whole_transaction(store: Store, experiment: ExperimentRow) -> None:
    def create_and_be_interrupted() -> None:
        with store.transaction():
            store.trials.create(experiment.id, 0, {}, seed=0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_and_be_interrupted()

    assert store.trials.list(experiment.id) == []
    store.trials.create(experiment.id, 0, {}, seed=0)


def test_an_inner_transaction_that_fails_undoes_only_itself(store: Store, trial: TrialRow) -> None:
    def update_and_fail() -> None:
        with store.transaction():
            store.trials.update(trial.id, restarts=2, progress=0.5)
            raise ZeroDivisionError

    with store.transaction():
        store.trials.update(trial.id, restarts=1)
        with pytest.raises(ZeroDivisionError):
            update_and_fail()

    found = store.trials.get(trial.id)
    assert (found.restarts, found.progress) == (1, 0.0)


def test_a_reader_sees_one_instant_inside_a_transaction(store: Store, trial: TrialRow) -> None:
    with Store.reader(store.home) as reader:
        with reader.transaction():
            before = reader.trials.get(trial.id)
            store.trials.update(trial.id, restarts=9)
            assert reader.trials.get(trial.id) == before

        assert reader.trials.get(trial.id).restarts == 9


def test_a_reader_writes_nothing(store: Store, trial: TrialRow) -> None:
    with (
        Store.reader(store.home) as reader,
        pytest.raises(StoreError, match=r"was opened for reading only; open a Store to change it$"),
    ):
        reader.trials.update(trial.id, restarts=9)


@pytest.mark.process
def test_a_forked_child_is_told_to_open_its_own_store(store: Store) -> None:
    """A connection in two processes corrupts the file."""
    child = os.fork()
    if child == 0:
        try:
            store.experiments.list()
        except StoreError as error:
            os._exit(0 if "was opened by process" in str(error) else 2)
        os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_another_thread_is_told_that_the_store_is_not_its_own(store: Store) -> None:
    said: list[str] = []

    def use() -> None:
        try:
            store.experiments.list()
        except StoreError as error:
            said.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "can only be used in that same thread" in said[0]


def test_a_transaction_that_sqlite_has_undone_takes_nothing_more(
    store: Store, trial: TrialRow
) -> None:
    """A full disk can do that; what follows would otherwise be written alone."""

    def go_on_regardless() -> None:
        with store.transaction():
            store._databases.held().run("ROLLBACK")
            store.trials.update(trial.id, restarts=1)

    with pytest.raises(
        StoreError, match=r"an error has undone this transaction; nothing of it was written$"
    ):
        go_on_regardless()

    assert store.trials.get(trial.id) == trial
    store.trials.update(trial.id, restarts=2)


def test_a_writer_that_waits_too_long_says_why(tmp_path: Path) -> None:
    first, second = (Database(tmp_path / "x.db", EXPERIMENT, patience=0.05) for _ in range(2))

    with (
        first.transaction(),
        pytest.raises(
            StoreError, match=r"x.db has been locked by another process for too long; try"
        ),
    ):
        second.run("DELETE FROM trials")


def test_what_is_to_follow_a_commit_follows_it_and_nothing_else(
    store: Store, trial: TrialRow
) -> None:
    done: list[str] = []
    database = store._databases.held()
    with store.transaction():
        database.afterwards(lambda: done.append("outer"))
        with suppress(ZeroDivisionError), store.transaction():
            database.afterwards(lambda: done.append("undone in part"))
            raise ZeroDivisionError
        assert done == []
    assert done == ["outer"]

    with suppress(ZeroDivisionError), store.transaction():
        database.afterwards(lambda: done.append("undone"))
        raise ZeroDivisionError
    with store.transaction():
        pass
    assert done == ["outer"]


PART = st.recursive(
    st.sampled_from(["put", "run", "read"]),
    lambda steps: st.tuples(st.booleans(), st.lists(steps, max_size=6)),
    max_leaves=20,
)


@settings(deadline=None)
@given(whole=st.tuples(st.booleans(), st.lists(PART, max_size=8)))
def test_deferred_writes_are_read_and_undone_like_direct_ones(
    tmp_path_factory: pytest.TempPathFactory, whole: Any
) -> None:
    path = tmp_path_factory.mktemp("put") / "x.db"
    database = Database(path, [["CREATE TABLE t (n INTEGER)"]])
    numbers = itertools.count()
    there: list[int] = []

    def take(steps: list[Any]) -> None:
        for step in steps:
            if isinstance(step, tuple):
                before = len(there)
                with suppress(ZeroDivisionError), database.transaction():
                    take(step[1])
                    if step[0]:
                        del there[before:]
                        raise ZeroDivisionError
            elif step == "read":
                assert database.rows("SELECT n FROM t ORDER BY n") == [(n,) for n in there]
            else:
                there.append(next(numbers))
                getattr(database, step)("INSERT INTO t VALUES (?)", (there[-1],))

    take([whole, "read"])
    database.close()
    assert Database(path, [["CREATE TABLE t (n INTEGER)"]]).rows("SELECT n FROM t ORDER BY n") == [
        (n,) for n in there
    ]


def test_invalid_write_raises_when_deferred_and_is_undone_alone(
    store: Store, trial: TrialRow
) -> None:
    run = store.runs.begin(trial.id, first=True)
    with store.transaction():
        store.metrics.report(trial.id, run.id, "validation", 1, {"loss": 1.0})
        with pytest.raises(StoreError, match=r"has at most 18 digits"), store.transaction():
            store.metrics.report(trial.id, run.id, "validation", 2**63, {"loss": 0.5})
        with pytest.raises(sqlite3.IntegrityError), store.transaction():
            store.trials.update(trial.id, restarts=1, progress=math.nan)
        store.metrics.report(trial.id, run.id, "validation", 2, {"loss": 2.0})

    found = store.trials.get(trial.id)
    assert (found.restarts, found.best_metric, found.batches) == (0, 1.0, 2)
    assert [each.batches for each in store.metrics.read(trial_id=trial.id)] == [1, 2]


def test_what_was_undone_is_not_remembered(
    store: Store, experiment: ExperimentRow, trial: TrialRow
) -> None:
    def fail() -> None:
        with store.transaction():
            store.journal.append(experiment.id, "{}")
            undone = store.trials.create(experiment.id, 1, {}, seed=0)
            store.metrics.report(
                undone.id, store.runs.begin(undone.id).id, "validation", 9, {"loss": 0.1}
            )
            assert store.trials.best(experiment.id) == 0.1
            raise ZeroDivisionError

    run = store.runs.begin(trial.id)
    store.metrics.report(trial.id, run.id, "validation", 9, {"loss": 0.5})
    with store.transaction(), suppress(ZeroDivisionError):
        fail()
    assert store.trials.best(experiment.id) == 0.5
    assert store.journal.append(experiment.id, "{}") == 1
    again = store.trials.create(experiment.id, 1, {}, seed=0)
    assert again.id > trial.id
    assert store.runs.begin(again.id).id == run.id + 1


def test_closing_twice_is_harmless(store: Store) -> None:
    store.close()
    store.close()
