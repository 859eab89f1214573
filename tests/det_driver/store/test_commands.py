from __future__ import annotations

import pytest

from det_core.errors import StoreError
from det_driver.store import ExperimentRow, Store


def test_commands_are_taken_once_and_in_order(store: Store, experiment: ExperimentRow) -> None:
    with Store(store.home) as other:
        for number in range(12):
            other.commands.send(experiment.id, "pause", {"number": number})

    taken = store.commands.take(experiment.id)

    assert [(each.kind, each.args["number"]) for each in taken] == [("pause", number) for number in range(12)]
    assert store.commands.take(experiment.id) == []


def test_a_command_whose_effect_is_undone_is_still_there(store: Store, experiment: ExperimentRow) -> None:
    store.commands.send(experiment.id, "cancel")

    def take_and_fail() -> None:
        with store.transaction():
            assert store.commands.take(experiment.id)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        take_and_fail()

    assert [each.kind for each in store.commands.take(experiment.id)] == ["cancel"]


def test_a_command_to_nobody_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match=r"^no experiment 6; det list shows those there are$"):
        store.commands.send(6, "pause")
