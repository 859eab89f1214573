"""What det migrate has kept of another system, as the page gets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from det_core.config import parse, to_json
from det_driver.client import Client
from det_driver.store import Store
from det_web.boards import Boards
from det_web.endpoints import ApiRequest, no_owners
from det_web.experiments import one
from det_web.lists import Lists


def described(home: Path, **kept: Any) -> Any:
    """Return what the page is sent of an experiment, next to which such data are kept."""
    with Store(home) as store:
        config = to_json(
            parse({"name": "x", "searcher": {"name": "single", "metric": "loss"}}).config
        )
        id = store.experiments.create(name="x", config=config, metric="loss").id
        if kept:
            (store.experiment_dir(id) / "determined.json").write_text(json.dumps(kept))
    asked = ApiRequest(
        home=home,
        client=Client(home),
        lists=Lists(),
        boards=Boards(),
        path={"id": str(id)},
        query=None,
        body=None,
        owners=no_owners,
        user=None,
    )
    return one(asked)


def test_page_gets_the_facts_of_another_system(tmp_path: Path) -> None:
    """Facts about each trial are left out."""
    sent = described(
        tmp_path,
        experiment={"owner": "ann"},
        trials={"5": {}},
        versions={"a": ""},
        checkpoints_left_out=[],
    )
    assert sent.elsewhere == {"experiment": {"owner": "ann"}}


def test_an_experiment_of_its_own_has_nothing_from_elsewhere(tmp_path: Path) -> None:
    assert described(tmp_path).elsewhere == {}
