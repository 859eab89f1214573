"""Trials whose worker is a fork of a process that has torch.

They give the numbers of those with an interpreter of their own.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from det_driver.store import Store

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_torch"
CONFIG = """
name: warm
entrypoint: probe:Probe
hyperparameters:
  global_batch_size: 32
  hidden: 32
  lr: {type: log, minval: -3, maxval: -1}
  momentum: 0.9
  dropout: 0.3
  workers: {type: categorical, vals: [0, 2]}
  augment: true
searcher: {name: random, metric: validation_loss, max_trials: 3, max_length: {batches: 60}, max_concurrent_trials: 2}
min_validation_period: {batches: 20}
scheduling_unit: 10
reproducibility: {experiment_seed: 5}
"""
PROBE = """
import sys

import torch

from model_def import DigitsTrial


class Probe(DigitsTrial):
    def evaluate_batch(self, batch):
        return {
            **super().evaluate_batch(batch),
            "forked": float("det_node.forkserver" in sys.orig_argv),
            "threads": float(torch.get_num_threads()),
            "default_seed": float(torch.initial_seed() % 2**20),
            "draw": torch.rand(()),
        }
"""


def history(home: Path) -> list[tuple]:
    with Store.reader(home) as store:
        return [
            (
                t.request,
                t.hparams,
                t.seed,
                m.group,
                m.batches,
                {k: v for k, v in m.values.items() if k != "forked"},
            )
            for t in store.trials.list(1)
            for m in store.metrics.read(trial_id=t.id)
        ]


def forked(home: Path) -> set[float]:
    with Store.reader(home) as store:
        return {m.values["forked"] for m in store.metrics.read(experiment_id=1, group="validation")}


def test_fork_with_torch_equals_a_new_interpreter_bit_for_bit(det):
    shutil.copy(EXAMPLE / "model_def.py", det.cwd)
    (det.cwd / "probe.py").write_text(PROBE)
    (det.cwd / "warm.yaml").write_text(CONFIG)
    det("run", "warm.yaml", "--quiet", env={"DET_SLOTS_TOTAL": "2"})
    warm = history(det.home)
    assert forked(det.home) == {1.0}
    det.home = det.home.with_name("home2")
    (det.cwd / "startup-hook.sh").write_text("true\n")
    det("run", "warm.yaml", "--quiet", env={"DET_SLOTS_TOTAL": "2"})
    assert forked(det.home) == {0.0}
    assert history(det.home) == warm
    assert len(warm) == 3 * (6 + 3)
