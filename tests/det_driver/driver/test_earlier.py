"""What a search is handed of earlier experiments: their trials' results, in its own unit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.test_transactions import run, state_of

from det_core.config import parse
from det_core.errors import ConfigError, StoreError
from det_driver.driver import create
from det_driver.driver._earlier import read_earlier
from det_driver.search import EarlierResult
from det_driver.store import Store

RANDOM = {"name": "random", "metric": "loss", "max_trials": 3, "max_length": 40}
SPACE: dict[str, Any] = {
    "net": {"width": {"type": "int", "minval": 1, "maxval": 9}},
    "lr": {"type": "double", "minval": 0, "maxval": 1},
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with experiment 1, of three trials that trained 40, 20 and 10 batches.

    The last has no metric.
    """
    with Store(tmp_path) as store:
        state = state_of(store, RANDOM, hyperparameters=SPACE)
        for batches, metrics in ((40, {"loss": 0.5}), (20, {"loss": 0.25}), (10, {"other": 1.0})):
            live = run(state)
            with state.transaction():
                state.reported(live, live.active, "validation", batches, metrics)
            live.active = None
        store.close()
    return tmp_path


def config(learn_from: list[int], **searcher: Any) -> Any:
    keys = {
        "metric": "loss",
        "sampler": "evolution",
        "max_trials": 9,
        "learn_from": learn_from,
        **searcher,
    }
    return parse({"entrypoint": "python3 x.py", "hyperparameters": SPACE, "searcher": keys}).config


@pytest.mark.parametrize(
    ("keys", "lengths"),
    [({"max_length": {"epochs": 9}}, (9.0, 4.5)), ({}, (40.0, 20.0)), ({"max_length": 8}, (8, 4))],
)
def test_lengths_are_shares_of_the_longest_training(
    home: Path, keys: dict[str, Any], lengths: tuple[float, ...]
) -> None:
    with Store(home) as store:
        found = read_earlier(store, config([1], **keys))
        rows = store.trials.list(1)
    hparams = [{"lr": row.hparams["lr"], "net.width": row.hparams["net"]["width"]} for row in rows]
    assert found == (
        EarlierResult(hparams[0], lengths[0], 0.5),
        EarlierResult(hparams[1], lengths[1], 0.25),
    )


def test_the_longest_and_best_are_taken_where_there_are_many(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("det_driver.driver._earlier.MOST_RESULTS", 1)
    with Store(home) as store:
        assert [result.metric for result in read_earlier(store, config([1]))] == [0.5]
        assert [result.metric for result in read_earlier(store, config([1, 1]))] == [0.5]


def test_missing_or_unlike_experiment_is_refused_at_the_start(
    home: Path,
) -> None:
    """It does not exist, or it has another metric."""
    with Store(home) as store:
        with pytest.raises(StoreError, match="7"):
            create(store, config([7]), None)
        with pytest.raises(
            ConfigError,
            match=r"names experiment 1, whose metric is 'loss', and searcher\.metric is 'acc'",
        ):
            create(store, config([1], metric="acc"), None)
        assert len(store.experiments.list()) == 1
