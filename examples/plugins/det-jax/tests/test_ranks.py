"""Two processes train what one would have trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODEL = "from det_jax.testing import OneVarTrial\n"
CONFIG = """
name: one weight
entrypoint: model_def:OneVarTrial
hyperparameters: {lr: 0.03, global_batch_size: 4, batches_per_epoch: 5, noise: 0.5, shuffle: true}
searcher: {name: single, metric: val_loss, max_length: 7}
scheduling_unit: 1
reproducibility: {experiment_seed: 3}
resources: {slots_per_trial: RANKS}
"""


def trained(home: Path, ranks: int, model: str = MODEL, status: int = 0) -> Any:
    """Run `det run`; return the losses by position, or what it said where it fails."""
    home.mkdir()
    (home / "model_def.py").write_text(model)
    (home / "const.yaml").write_text(CONFIG.replace("RANKS", str(ranks)))
    env = {**os.environ, "DET_HOME": str(home / "det")}
    det = [sys.executable, "-m", "det_driver.cli"]
    ran = subprocess.run(
        [*det, "run", "const.yaml"],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    if status:
        return ran.stdout + ran.stderr
    told = subprocess.run(
        [*det, "metrics", "1", "--json", "--group", "training"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    return {row["batches"]: row["metrics"]["loss"] for row in rows}


def test_two_ranks_have_the_losses_of_one_with_noise_and_in_shuffled_order(tmp_path: Path) -> None:
    one, two = trained(tmp_path / "one", 1), trained(tmp_path / "two", 2)
    assert list(two) == [1, 2, 3, 4, 5, 6, 7]
    assert two == pytest.approx(one, rel=1e-6)


def test_a_module_that_computes_before_the_ranks_have_met_is_told_so(tmp_path: Path) -> None:
    early = (
        "import jax.numpy\nfrom det_jax.testing import OneVarTrial\nzero = jax.numpy.zeros(3) + 1\n"
    )
    said = trained(tmp_path / "early", 2, early, status=2)
    assert (
        "before any JAX calls that might initialise the XLA backend; let the trial's module compute"
        " nothing while" in said
    )
