from __future__ import annotations

import logging
import sys
import warnings

import pytest

from det_core.config import Double
from det_core.errors import ConfigError, PluginError

BOWL = {"x": Double(minval=-1, maxval=1), "y": Double(minval=-1, maxval=1)}


def bowl(x: float, y: float) -> float:
    return (x - 0.3) ** 2 + (y + 0.6) ** 2


@pytest.mark.parametrize(
    ("sampler", "ours", "options"),
    [
        (
            "TPESampler",
            {"sampler": "tpe", "startup_trials": 4},
            {"n_startup_trials": 4, "constant_liar": True},
        ),
        ("TPESampler", {"sampler_options": {"constant_liar": False}}, {"constant_liar": False}),
        ("CmaEsSampler", {"sampler": "cmaes", "sampler_options": {"popsize": 5}}, {"popsize": 5}),
        (
            "QMCSampler",
            {"sampler": "qmc", "sampler_options": {"qmc_type": "halton"}},
            {"qmc_type": "halton"},
        ),
        (
            "NSGAIISampler",
            {"sampler": "nsgaii", "sampler_options": {"population_size": 5}},
            {"population_size": 5},
        ),
        ("RandomSampler", {"sampler": "random"}, {}),
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_suggestions_are_those_of_a_study_of_optunas(
    make, train, sampler: str, ours: dict, options: dict
) -> None:
    """With the experiment's seed; nothing that det adds changes what the library would do."""
    import optuna

    created = train(
        make(9, BOWL, max_trials=30, max_concurrent_trials=1, **ours),
        lambda create: {"loss": bowl(**create.hparams)},
    )
    study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=9, **options))
    study.optimize(
        lambda trial: bowl(trial.suggest_float("x", -1, 1), trial.suggest_float("y", -1, 1)),
        n_trials=30,
    )
    assert [create.hparams for create in created] == [trial.params for trial in study.trials]


@pytest.mark.parametrize("sampler", ["NSGAIISampler", "TPESampler"])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_two_metrics_are_those_of_a_study_with_two_directions(make, train, sampler: str) -> None:
    import optuna

    def both(x: float, y: float) -> tuple[float, float]:
        return (x - 0.3) ** 2 + y**2, -((x + 0.3) ** 2) - y**2

    name, options = (
        ("nsgaii", {"population_size": 8})
        if sampler == "NSGAIISampler"
        else ("tpe", {"multivariate": True})
    )
    changes = {
        "sampler": name,
        "sampler_options": options,
        "second_metric": "gain",
        "second_smaller_is_better": False,
    }
    search = make(9, BOWL, max_trials=30, max_concurrent_trials=1, **changes)
    created = train(
        search, lambda create: dict(zip(("loss", "gain"), both(**create.hparams), strict=True))
    )
    liar = {"constant_liar": True} if name == "tpe" else {}
    study = optuna.create_study(
        sampler=getattr(optuna.samplers, sampler)(seed=9, **options, **liar),
        directions=["minimize", "maximize"],
    )
    study.optimize(
        lambda trial: both(trial.suggest_float("x", -1, 1), trial.suggest_float("y", -1, 1)),
        n_trials=30,
    )
    assert [create.hparams for create in created] == [trial.params for trial in study.trials]


@pytest.mark.parametrize(
    ("package", "changes", "message"),
    [
        (
            "cmaes",
            {"sampler": "cmaes"},
            "searcher.sampler is 'cmaes', which needs cmaes, and that is not installed",
        ),
        (
            "torch",
            {"sampler": "gp"},
            "searcher.sampler is 'gp', which needs torch.*; try: pip install torch",
        ),
        (
            "scipy",
            {"sampler": "qmc"},
            "searcher.sampler is 'qmc', which needs scipy.*; try: pip install scipy",
        ),
        ("optuna", {}, "searcher.name is 'optuna', which needs optuna.*; try: pip install optuna"),
    ],
)
def test_a_package_that_is_missing_is_named(
    make, monkeypatch: pytest.MonkeyPatch, package: str, changes: dict, message: str
) -> None:
    if changes.get("sampler") == "gp":
        pytest.importorskip("scipy")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PluginError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"sampler": "qmc", "startup_trials": 3},
            (
                "searcher.startup_trials is 3, and the sampler qmc has no such phase; leave it out,"
                " or take one of cmaes, gp, tpe"
            ),
        ),
        (
            {"sampler": "cmaes", "second_metric": "size"},
            (
                "searcher.second_metric is 'size', and the sampler cmaes takes one metric; leave it"
                " out, or take one of gp, "
            ),
        ),
        (
            {"sampler": "random", "sampler_options": {"seed": 1}},
            "searcher.sampler_options.seed is det's to give; set reproducibility.experiment_seed",
        ),
        (
            {"sampler_options": {"n_startup_trials": 1}},
            (
                "searcher.sampler_options.n_startup_trials is det's to give; set"
                " searcher.startup_trials"
            ),
        ),
        (
            {"sampler": "nsgaii", "sampler_options": {"popsize": 1}},
            (
                "searcher.sampler_options.popsize is no option of the sampler nsgaii; it takes"
                " crossover_prob, mutation_prob, population_size, swapping_prob"
            ),
        ),
        (
            {"sampler_options": {"gamma": "x"}},
            (
                "searcher.sampler_options.gamma is an object, which YAML cannot hold; give some of"
                " .*multivariate"
            ),
        ),
        (
            {"sampler_options": {"n_ei_candidates": "many"}},
            "searcher.sampler_options.n_ei_candidates is 'many'; the sampler tpe wants int",
        ),
        (
            {"sampler_options": {"n_ei_candidates": True}},
            "n_ei_candidates is True; the sampler tpe wants int",
        ),
        (
            {"sampler_options": {"n_ei_candidates": None}},
            "n_ei_candidates is None; the sampler tpe wants int",
        ),
        (
            {"sampler": "nsgaii", "sampler_options": {"population_size": 1}},
            (
                "searcher.sampler_options is .'population_size': 1., which the sampler refuses:"
                " .*greater than or equal to 2"
            ),
        ),
    ],
)
def test_settings_that_do_not_suit_the_sampler_are_named(make, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**changes)


def test_a_sampler_that_cannot_go_on_says_why(make, train) -> None:
    search = make(0, BOWL, max_trials=5, startup_trials=1, sampler_options={"n_ei_candidates": 0})
    with pytest.raises(
        PluginError,
        match=r"Optuna's TPESampler cannot suggest hyperparameters: .*; take another sampler",
    ):
        train(search, lambda create: {"loss": bowl(**create.hparams)})


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "qmc", "nsgaii", "random"])
def test_nothing_is_logged_and_optunas_settings_are_left_alone(
    make, train, capfd: pytest.CaptureFixture[str], sampler: str
) -> None:
    import optuna

    before = optuna.logging.get_verbosity()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(
            make(sampler=sampler, max_trials=20), lambda create: {"loss": create.hparams["dropout"]}
        )
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == before
    assert logging.getLogger("optuna").level == before
