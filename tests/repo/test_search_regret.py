"""The benchmark of what searches find, on the surrogate that is in the repository."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "search_regret.py"


@pytest.fixture(scope="module")
def regret():
    pytest.importorskip("onnxruntime")
    names = ("search_regret", "search_peers", "search_tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FILE.parent))
        yield importlib.import_module("search_regret")
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def surrogate(regret):
    return regret.Surrogate(regret.DATA)


def test_the_surrogate_says_what_it_said_when_it_was_copied(surrogate, regret) -> None:
    """34 data sets; an accuracy in percent for each epoch, inside of the scale."""
    assert len(surrogate.data_sets) == 34
    assert set(surrogate.data_sets) < set(surrogate.scale)
    curve = surrogate.accuracies("3945", regret.curve_rows(regret.decoded([0.5] * 7), 0, 52))
    assert curve.shape == (52,)
    assert 50 < curve[-1] <= surrogate.scale["3945"][1] + 0.01


def test_the_tables_have_a_curve_for_each_choice(regret) -> None:
    tables = regret.Tables()
    for name in tables.data_sets:
        median, best = tables.scale[name]
        space = tables.space(name)
        last = {each: hp.vals[-1] for each, hp in space.items()}
        curve = tables.curve(name, last, 2, 27)
        assert len(curve) == 25
        assert max(curve) <= best
        assert median < best
        assert tables.rows(name) == math.prod(len(hp.vals) for hp in space.values())


@pytest.mark.parametrize("name", ["auto", "random full", "tpe async_halving", "optuna tpe median"])
@pytest.mark.parametrize("family", ["lcbench", "tables"])
def test_regret_falls_with_the_budget_and_repeats_itself(
    surrogate, regret, family: str, name: str
) -> None:
    if "tpe" in name:
        pytest.importorskip("optuna")
    trials, data_set = (surrogate, "3945") if family == "lcbench" else (regret.Tables(), "mlp-wine")
    first, second = (
        regret.run(regret.contestant(name, 7, 8, trials, data_set), trials, data_set, 8, 0, (1, 3))
        for _ in range(2)
    )
    assert first == second
    assert first[0] >= first[1] > -0.01


def test_what_is_used_is_the_budget_on_workers_of_any_speed(surrogate, regret) -> None:
    """Epochs are counted over all workers, each at its own pace."""
    for workers in (1, 8):
        search, epochs = regret.contestant("random", 1, workers, surrogate, "7593"), []
        report = search.report
        search.report = lambda *event, report=report, epochs=epochs: (
            epochs.append(event),
            report(*event),
        )[1]
        regret.run(search, surrogate, "7593", workers, 0, (2, 4))
        assert 4 * 52 - workers <= len(epochs) <= 4 * 52


def test_what_a_file_of_results_has_is_not_run_again(
    regret, surrogate, tmp_path, monkeypatch, capsys
) -> None:
    results = tmp_path / "results.json"
    command = ["search_regret", "--searchers", "random", "--every", "34", "--results", str(results)]
    monkeypatch.setattr(sys, "argv", command)
    known = {f"{surrogate.data_sets[0]} 0": [0.5, 0.25, 0.125]}
    results.write_text(json.dumps({"budgets": [3, 10, 20], "regrets": {"random 1": known}}))
    regret.main()
    assert (
        "| random | 0.500 ± 0.000 | 0.250 ± 0.000 | 0.125 ± 0.000 | 0.292 ± 0.000 |  |  | 1 |"
        in capsys.readouterr().out
    )
    monkeypatch.setattr(sys, "argv", [*command, "--budgets", "3", "10"])
    with pytest.raises(SystemExit, match=r"has the budgets \[3, 10, 20\]; name another file"):
        regret.main()


def test_a_paired_test_tells_a_difference_from_none(regret) -> None:
    np = pytest.importorskip("numpy")
    noise = np.random.default_rng(1).normal(0, 1, 34)
    assert regret.p_value(noise - noise.mean()) > 0.9
    assert regret.p_value(noise + 2) < 0.001
    assert 0.2 < regret.interval(noise) < 0.5
