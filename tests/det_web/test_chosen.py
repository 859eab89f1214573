"""The page says what the searcher `auto` has chosen, and why."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from det_core.config import parse, to_json
from det_driver.client import Client
from det_driver.store import Store
from det_web.experiments import one

AUTO = {"name": "auto", "metric": "loss", "max_trials": 60, "max_length": {"epochs": 9}}
RANDOM = {"name": "random", "metric": "loss", "max_trials": 60, "max_length": 9}


@pytest.mark.parametrize(
    ("searcher", "shown"),
    [
        (
            AUTO,
            (
                "auto: sampler evolution, schedule async_halving (3 rungs, divisor 2.5): it learns"
                " after the first 40 of 60 trials; poor trials need not train all 9 epochs"
            ),
        ),
        (RANDOM, "random"),
    ],
)
def test_what_auto_chose_is_told_with_the_experiment(
    tmp_path: Path, searcher: dict[str, Any], shown: str
) -> None:
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
    config = parse({"entrypoint": "x:T", "hyperparameters": space, "searcher": searcher}).config
    with Store(tmp_path) as store:
        id = store.experiments.create(
            name="s", config=to_json(config), metric="loss", entrypoint="x:T"
        ).id
    experiment = Client(tmp_path).get_experiment(id)
    asked: Any = SimpleNamespace(id=id, experiment=experiment, store=lambda: Store.reader(tmp_path))
    assert one(asked).searcher == shown
