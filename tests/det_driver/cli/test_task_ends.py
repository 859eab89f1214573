"""What becomes of a task whose terminal or driver ends while it starts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from det_driver.cli import _tasks
from det_driver.cli._console import Settings
from det_driver.store import Store


def test_a_shell_does_not_wait_for_a_driver_that_is_gone(tmp_path: Path) -> None:
    with Store(tmp_path / "home") as store:
        made = store.experiments.create(name="sh", config="{}", metric="")
        with store.lock(made.id):
            store.experiments.update(made.id, state="ACTIVE", started=time.time(), pid=2**22)
        assert _tasks._await_terminal(store, made.id) is None


def test_interrupt_while_a_driver_starts_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver does not get the Ctrl-C of the terminal, so the command would go on."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("det_driver.driver.start_driver", interrupted)
    settings = Settings.read({"DET_HOME": str(tmp_path / "home"), "DET_SLOTS_TOTAL": "1"})
    options = {"slots": 1, "priority": None, "max_hours": None, "idle": None}
    with pytest.raises(KeyboardInterrupt):
        _tasks._start(settings, "command", ["true"], None, None, **options)
    with Store.reader(tmp_path / "home") as store:
        assert store.experiments.get(1).state == "CANCELED"
