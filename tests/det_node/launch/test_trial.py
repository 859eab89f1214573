"""A trial class in an entrypoint that launches it.

`python3 -m det_node.launch.X --trial module:Class`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

MODEL = """
import os, time
from det_testing.fakes import OwnedOneVar, Weight

class Trial(OwnedOneVar):
    def build_data(self):
        print("rank", self.run.distributed.rank, "of", self.run.distributed.size, flush=True)
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().build_data()
"""
CONFIG = """
name: launched
entrypoint: ENTRYPOINT
reproducibility: {experiment_seed: 7}
max_restarts: 0
scheduling_unit: 10
min_checkpoint_period: {batches: 20}
resources: {slots_per_trial: 2}
hyperparameters: {lr: 0.001}
searcher: {name: single, metric: val_loss, max_length: {batches: 60}}
"""


@pytest.fixture
def plugin_path(tmp_path: Path) -> Path:
    """A directory for PYTHONPATH that has the fakes installed as a stranger's plugin would be."""
    info = tmp_path / "site" / "fakes-1.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: fakes\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text("[det]\nfakes = det_testing.fake_hooks\n")
    return info.parent


@pytest.fixture
def train(det, plugin_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(plugin_path))
    monkeypatch.setenv("DET_SLOTS_TOTAL", "2")
    det.cwd.joinpath("model_def.py").write_text(MODEL)

    def run(entrypoint: str, status: int = 0):
        det.cwd.joinpath("const.yaml").write_text(CONFIG.replace("ENTRYPOINT", entrypoint))
        return det("run", "const.yaml", status=status)

    return run


def history(det, experiment: int) -> list[tuple]:
    return [
        (m["group"], m["batches"], m.get("loss"), m.get("val_loss"))
        for m in det.metrics(experiment)
    ]


@pytest.mark.parametrize("module", ["det_node.launch.torch_distributed", "det_horovod.launch"])
def test_it_is_trained_on_every_slot_as_the_class_alone_would_be(det, train, module):
    if module == "det_horovod.launch":
        pytest.importorskip("horovod")
    train("model_def:Trial")
    train(f"python3 -m {module} --trial model_def:Trial")
    assert history(det, 2) == history(det, 1) != []
    lines = det("logs", "2").stdout
    assert "[rank=0] rank 0 of 2" in lines
    assert "[rank=1] rank 1 of 2" in lines


def test_its_mistake_is_not_tried_again(det, train):
    done = train("python3 -m det_node.launch.torch_distributed --trial model_def:Trail", status=2)
    assert "model_def has no 'Trail'" in done.stderr
