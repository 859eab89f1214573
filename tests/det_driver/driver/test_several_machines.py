"""A home that several machines are about to use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from det_core.config import to_json
from det_core.errors import StoreError
from det_driver.config import load
from det_driver.driver import submit_driver
from det_driver.store import SEVERAL, Store

CONFIG = {
    "entrypoint": "python3 x.py",
    "searcher": {"name": "single", "metric": "m", "max_length": {"batches": 1}},
}


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine `local` have jobs for drivers, none of which is started here."""

    def engine(on_event: Any) -> Any:
        return SimpleNamespace(has_drivers=True)

    plugins = SimpleNamespace(engines=lambda: {"local": SimpleNamespace(load=lambda: engine)})
    monkeypatch.setattr(
        "det_driver.driver._detached.Plugins", SimpleNamespace(installed=lambda: plugins)
    )


@pytest.mark.usefixtures("jobs")
def test_no_driver_becomes_a_job_while_a_hidden_one_is_driven(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Store(home) as store:
        for name in ("hidden", "mine"):
            store.experiments.create(name=name, config=to_json(load(CONFIG).config))
        with (
            store.lock(1),
            Store(home, visible={2}) as mine,
            pytest.raises(StoreError, match="experiment 1 is driven on this one"),
        ):
            submit_driver(mine, home, 2, {})
    assert not (home / SEVERAL).exists()


@pytest.mark.usefixtures("jobs")
def test_drivers_of_a_server_are_no_jobs(tmp_path: Path) -> None:
    with Store(tmp_path / "home") as store:
        made = store.experiments.create(name="mine", config=to_json(load(CONFIG).config))
        assert submit_driver(store, store.home, made.id, {"DET_DRIVERS_HERE": "1"}) is None
    assert not (tmp_path / "home" / SEVERAL).exists()
