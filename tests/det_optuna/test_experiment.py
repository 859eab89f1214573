"""Searches by `det run`, which finds the searcher by its entry point."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import math, os, time
    from det_core import InvalidHP, core

    with core.init() as context:
        hparams = core.get_cluster_info().trial.hparams
        time.sleep(float(os.environ.get("PAUSE", "0")))
        if hparams["net"]["layers"] == 3:
            raise InvalidHP("three layers are too many")
        error = (math.log10(hparams["lr"]) + 2) ** 2 + hparams["net"]["layers"]
        context.train.report_validation_metrics(4, {"error": error, "size": hparams["net"]["layers"]})
"""
CONFIG = """
    name: optuna
    entrypoint: python3 train.py
    hyperparameters:
      lr: {type: log, minval: -4, maxval: 0}
      net:
        layers: {type: int, minval: 1, maxval: 3}
    searcher: {name: optuna, metric: error, max_trials: 6, startup_trials: 3, max_concurrent_trials: 1}
    reproducibility: {experiment_seed: 4}
"""


@pytest.fixture
def project(det):
    det.cwd.joinpath("train.py").write_text(textwrap.dedent(SCRIPT))
    det.cwd.joinpath("search.yaml").write_text(textwrap.dedent(CONFIG))
    return det.cwd


def tried(det, experiment: int) -> list[tuple]:
    trials = sorted(det.json("show", str(experiment))["trials"], key=lambda trial: trial["id"])
    return [
        (trial["hparams"]["lr"], trial["hparams"]["net"]["layers"], trial["state"])
        for trial in trials
    ]


@pytest.mark.thorough
def test_search_with_an_entry_point_replaces_invalid_trials(det, project) -> None:
    result = det.json("run", "search.yaml")
    trials = tried(det, 1)
    assert result["trials"]["COMPLETED"] == 6
    assert all((layers == 3) == (state == "INVALID_HP") for _, layers, state in trials)
    assert any(state == "INVALID_HP" for *_, state in trials)
    best = min(
        (math.log10(lr) + 2) ** 2 + layers for lr, layers, state in trials if state == "COMPLETED"
    )
    assert result["best_metric"] == pytest.approx(best)


def test_search_with_a_killed_driver_resumes_unchanged(det, project, wait_until) -> None:
    driver = det.start("run", "search.yaml", env={"PAUSE": "0.3"})
    wait_until(
        lambda: (
            det.home.joinpath("experiments/1/experiment.db").exists() and len(det.metrics(1)) >= 3
        ),
        "some trials",
    )
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    det("resume", "1")
    det("run", "search.yaml")
    assert tried(det, 2) == tried(det, 1)


def test_settings_that_do_not_fit_end_in_one_line(det, project) -> None:
    done = det("run", "search.yaml", "--config", "searcher.sampler=qmc", status=2)
    assert (
        done.stderr.strip().splitlines()[-1].endswith("leave it out, or take one of cmaes, gp, tpe")
    )
    done = det("run", "search.yaml", "--config", "searcher.sampler=tpa", status=2)
    assert "searcher.sampler is 'tpa'" in done.stderr
    assert "'tpe'" in done.stderr


def test_a_search_can_be_previewed(det, project) -> None:
    facts = det.json(
        "preview",
        "search.yaml",
        "--config",
        "searcher.max_length={epochs: 3}",
        "--config",
        "searcher.sampler=tpe",
    )
    assert facts["trials"] == 6


@pytest.mark.process
def test_nothing_heavy_is_imported_before_a_search_is_made() -> None:
    seen = subprocess.run(
        [
            sys.executable,
            "-c",
            (
                "import sys, det_optuna, det_optuna._hooks as h;"
                " next(iter(h.det_searchers())).config();print([name for name in ('optuna',"
                " 'numpy', 'scipy', 'torch') if name in sys.modules])"
            ),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert seen.stdout.strip() == "[]"


def test_public_names_are_listed_and_there() -> None:
    import det_optuna

    assert det_optuna.__all__ == sorted(det_optuna.__all__)
    assert all(getattr(det_optuna, name) for name in det_optuna.__all__)
    with pytest.raises(AttributeError, match="module 'det_optuna' has no attribute 'Nothing'"):
        det_optuna.Nothing  # noqa: B018 - the access is what is tested


def test_a_trial_class_without_a_length_is_refused(det):
    (det.cwd / "c.yaml").write_text(
        "entrypoint: m:T\nsearcher: {name: optuna, metric: error, max_trials: 2}\n"
    )
    assert "searcher.max_length is missing" in det("run", "c.yaml", status=2).stderr
