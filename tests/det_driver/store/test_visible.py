"""A store for a user who does not see all experiments."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import pytest

from det_core.errors import DetError, StoreError
from det_driver.cli import VISIBLE, Settings, write_numbers
from det_driver.store import Store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Store(tmp_path / "home") as store:
        for name in "abcd":
            made = store.experiments.create(name=name, config="{}")
            with store.lock(made.id):
                store.trials.create(made.id, 0, {}, 0)
    return tmp_path / "home"


def listed(store: Store) -> list[int]:
    return [each.experiment.id for each in store.experiments.list()]


def test_only_visible_experiments_exist(home: Path) -> None:
    with Store.reader(home, {1, 3, 9}) as store:
        assert listed(store) == [3, 1]
        assert store.trials.get(3).experiment_id == 3
        for id in (2, 99):
            with pytest.raises(StoreError, match=f"no experiment {id}; det list shows"):
                store.experiments.get(id)
            with pytest.raises(StoreError, match=f"no trial {id}"):
                store.trials.get(id)
    with Store(home, visible={1}) as store, pytest.raises(StoreError, match="no experiment 2"):
        store.experiments.update(2, name="x")


def test_rows_come_from_the_index_or_else_from_their_database(home: Path) -> None:
    with Store.reader(home, {1, 3, 9}) as store:
        (home / "experiments" / "1" / "experiment.db").unlink()
        with Store(home) as other:
            other.index.forget(3)
        found = store.experiments.rows([1, 2, 3, 9])
    assert {id: row.name for id, row in found.items()} == {1: "a", 3: "c"}


def test_a_store_shows_what_it_makes_without_an_index(home: Path) -> None:
    (home / "index.db").unlink()
    with Store(home, visible={1}) as store:
        made = store.experiments.create(name="e", config="{}")
        assert (made.id, listed(store)) == (5, [5, 1])
    # The index that it made again is for everybody.
    with Store.reader(home) as store:
        assert listed(store) == [5, 4, 3, 2, 1]


def test_a_command_sees_what_its_environment_names(home: Path) -> None:
    assert write_numbers([4, 1, 2]) == "1-2 4-4"
    assert VISIBLE == "DET_VISIBLE"
    # A variable of the environment would not have room for the last one.
    for numbers in ([], [2], [1, 2, 4], [1, 3, *range(5, 40_000, 2)]):
        with TemporaryFile() as file:
            file.write(write_numbers(numbers).encode())
            file.flush()
            environ = {"DET_HOME": str(home), "DET_VISIBLE": str(file.fileno())}
            for _ in range(2):
                with Settings.read(environ).reader() as store:
                    assert listed(store) == [id for id in (4, 3, 2, 1) if id in numbers]
    # What the variable names may be gone. Nothing is shown then.
    for wrong in ("", "x", "-1", "1-3 7-7", str(2**70), environ["DET_VISIBLE"]):
        with pytest.raises(DetError, match=r"DET_VISIBLE is .* which is no open file"):
            Settings.read({**environ, "DET_VISIBLE": wrong})
    with Settings.read({"DET_HOME": str(home)}).reader() as store:
        assert listed(store) == [4, 3, 2, 1]
