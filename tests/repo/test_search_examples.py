"""The searches among the examples run, and the benchmark that compares searchers."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits_torch"


def shrunk(**changes: object) -> list[str]:
    return [
        argument for name, value in changes.items() for argument in ("--config", f"{name}={value}")
    ]


def test_adaptive_asha_on_the_digits(det) -> None:
    changes = {"searcher.max_trials": 4, "searcher.max_length.epochs": 4}
    result = det.json("run", DIGITS / "search.yaml", *shrunk(**changes))
    assert result["trials"] == {"COMPLETED": 4}
    sizes = {trial["hparams"]["global_batch_size"] for trial in det.json("show", "1")["trials"]}
    assert len(sizes) == 4


@pytest.mark.thorough
def test_population_based_training_resumes_from_the_best(det) -> None:
    changes = {
        "searcher.population_size": 4,
        "searcher.num_rounds": 2,
        "searcher.length_per_round.epochs": 1,
    }
    result = det.json("run", DIGITS / "pbt.yaml", *shrunk(**changes))
    assert result["trials"] == {"COMPLETED": 5}
    copy = max(det.json("show", "1")["trials"], key=lambda trial: trial["id"])
    first = [
        m["accuracy"]
        for m in det.metrics(1, "validation")
        if m["batches"] == 38 and m["trial"] != copy["id"]
    ]
    after = [m["accuracy"] for m in det.metrics(1, "validation") if m["trial"] == copy["id"]]
    assert after[0] > sorted(first)[len(first) // 2]


def test_copy_uses_its_own_settings_and_a_resume_changes_none() -> None:
    callback = example().OwnOptimizerSettings(lr=0.2, momentum=0.5, weight_decay=0.1)
    other = {"lr": 0.05, "initial_lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False}
    checkpoint = {"optimizers_state_dict": [{"param_groups": [dict(other)]}]}
    callback.on_checkpoint_load_start(checkpoint)
    (group,) = checkpoint["optimizers_state_dict"][0]["param_groups"]
    assert group == {
        "lr": 0.1,
        "initial_lr": 0.2,
        "momentum": 0.5,
        "weight_decay": 0.1,
        "nesterov": False,
    }
    own = {**group, "lr": 0.07000000000000001}
    checkpoint = {"optimizers_state_dict": [{"param_groups": [dict(own)]}]}
    callback.on_checkpoint_load_start(checkpoint)
    assert checkpoint["optimizers_state_dict"][0]["param_groups"] == [own]


@pytest.mark.thorough
@pytest.mark.process
def test_the_comparison_of_searchers_runs_and_repeats_itself() -> None:
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "search_quality.py"),
        "--seeds",
        "2",
        "--trials",
        "5",
    ]
    first, second = (
        subprocess.run(
            [*command, "--epochs", "4"], capture_output=True, text=True, check=True, timeout=120
        ).stdout
        for _ in range(2)
    )
    lines = first.splitlines()
    assert lines[:-1] == second.splitlines()[:-1]
    batches = [[int(n) for n in re.findall(r"(\d+) batches", line)] for line in lines[:2]]
    assert all(asha <= random for asha, random in batches)
    assert re.search(
        r"adaptive_asha error median 0\.\d+, quartiles \[0\.\d+, 0\.\d+\], from 0\.\d+ to 0\.\d+",
        first,
    )
    assert re.search(r"random        error median 0\.\d+", first)


def example():
    pytest.importorskip("det_torch")
    spec = importlib.util.spec_from_file_location("digits_model_def", DIGITS / "model_def.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
