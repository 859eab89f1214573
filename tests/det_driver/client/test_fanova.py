"""What mattered by fANOVA.

As Optuna finds it, without what chance or another hyperparameter explains.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from statistics import mean, pvariance
from typing import Any

import pytest
from click.testing import CliRunner

from det_core.config import Categorical, Double, ExperimentConfig, Log, Random, to_json
from det_core.errors import DetError
from det_driver.cli._console import Settings
from det_driver.cli._show import show
from det_driver.client import importances
from det_driver.client._fanova import FEWEST_FOR_FOREST, fanova
from det_driver.store import Store

pytest.importorskip("sklearn")
Trials = list[tuple[dict[str, Any], float]]


def trials(count: int, seed: int = 1) -> Trials:
    draw = random.Random(seed)
    found: Trials = []
    for _ in range(count):
        hparams = {
            "noise": draw.random(),
            "kind": draw.choice("abc"),
            "lr": 10 ** draw.uniform(-4, 0),
        }
        found.append((hparams, abs(hparams["lr"] ** 0.25 - 0.5) * 3 + (hparams["kind"] == "b")))
    return found


def shares_of_optuna(found: Trials) -> dict[str, float]:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces = {name: optuna.distributions.FloatDistribution(0, 1) for name in found[0][0]}
    study = optuna.create_study()
    ranks = sorted(metric for _, metric in found)
    for hparams, metric in found:
        value = float(ranks.index(metric))
        study.add_trial(
            optuna.trial.create_trial(params=hparams, distributions=spaces, value=value)
        )
    shares: dict[str, float] = optuna.importance.FanovaImportanceEvaluator(seed=1).evaluate(study)
    return shares


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_shares_of_numbers_are_those_that_optuna_finds() -> None:
    """Optuna's add up to what is explained by one alone, and ours are of all differences."""
    draw = random.Random(5)
    found: Trials = []
    for _ in range(200):
        hparams = {name: draw.random() for name in "xyz"}
        found.append((hparams, hparams["x"] + 2 * abs(hparams["y"] - 0.5) + 0.1 * draw.random()))
    theirs, ours = shares_of_optuna(found), fanova(found)
    whole, theirs_whole = sum(ours.values()), sum(theirs.values())
    for name, share in ours.items():
        assert share / whole == pytest.approx(theirs[name] / theirs_whole, abs=0.08)


def test_the_share_of_a_category_is_the_variance_of_its_means() -> None:
    """That of 20,000 trials, of which a forest sees 200."""
    many = trials(20_000)
    order = {metric: rank for rank, metric in enumerate(sorted(metric for _, metric in many))}
    ranks = [order[metric] for _, metric in many]
    groups: dict[str, list[int]] = {}
    for (hparams, _), rank in zip(many, ranks, strict=True):
        groups.setdefault(hparams["kind"], []).append(rank)
    truth = pvariance([mean(group) for group in groups.values()]) / pvariance(ranks)
    shares = fanova(many[:200])
    assert shares["kind"] == pytest.approx(truth, abs=0.12)
    assert shares["noise"] < 0.02


def test_what_only_goes_along_with_the_cause_explains_little() -> None:
    draw = random.Random(3)
    found: Trials = []
    for _ in range(200):
        x = draw.random()
        found.append(({"x": x, "along": x if draw.random() < 0.8 else draw.random()}, x))
    assert importances(found)["along"] > 0.4
    shares = fanova(found)
    assert shares["x"] > 0.8
    assert shares["along"] < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_chance_explains_next_to_nothing(seed: int) -> None:
    draw = random.Random(seed)
    assert sum(fanova([(hparams, draw.random()) for hparams, _ in trials(60, seed)]).values()) < 0.1


def test_trials_that_say_nothing_are_left_out() -> None:
    """Too few trials, and those that lack a hyperparameter, give no importances."""
    found = trials(FEWEST_FOR_FOREST)
    assert fanova(found)["kind"] > 0.1
    assert fanova(found[1:]) == {}
    assert fanova([({"x": i}, 1.0) for i in range(30)]) == {}
    assert fanova([*found, ({"lr": 0.1, "kind": "a"}, 1.0)]) == {}


def test_it_is_printed_on_request(tmp_path: Path) -> None:
    space = {
        "noise": Double(minval=0, maxval=1),
        "kind": Categorical(vals=("a", "b", "c")),
        "lr": Log(minval=-4, maxval=0),
    }
    searcher = Random(metric="loss", max_trials=60)
    config = ExperimentConfig(entrypoint="x:T", hyperparameters=space, searcher=searcher)
    with Store(tmp_path) as store:
        id = store.experiments.create(
            name="s", config=to_json(config), metric="loss", entrypoint="x:T"
        ).id
        with store.lock(id):
            for i, (hparams, metric) in enumerate(trials(60)):
                run = store.runs.begin(store.trials.create(id, i, hparams, i).id)
                store.metrics.report(run.trial_id, run.id, "validation", 10, {"loss": metric})
    shown = (
        CliRunner()
        .invoke(show, [str(id), "--fanova"], obj=Settings.read({"DET_HOME": str(tmp_path)}))
        .output
    )
    assert re.search(r"^what mattered by fANOVA: kind \d+%, lr \d+%", shown, re.MULTILINE)


def test_without_scikit_learn_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(
        DetError,
        match="fANOVA comes with scikit-learn, which is not installed; pip install scikit-learn",
    ):
        fanova(trials(30))
