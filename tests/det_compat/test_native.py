"""Scripts of Determined's Native API, run unmodified."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

TRIAL = """
    import argparse

    import torch

    import determined as det
    from determined import experimental
    from determined._train_context import DistributedContext
    from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext


    class LineTrial(PyTorchTrial):
        def __init__(self, context: PyTorchTrialContext) -> None:
            assert isinstance(context.distributed, DistributedContext)
            self.context = context
            self.model = context.wrap_model(torch.nn.Linear(1, 1))
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("lr")))

        def build_training_data_loader(self):
            x = torch.linspace(-1, 1, 32).reshape(-1, 1)
            return DataLoader(torch.utils.data.TensorDataset(x, 2 * x), batch_size=8)

        build_validation_data_loader = build_training_data_loader

        def train_batch(self, batch, epoch_idx, batch_idx):
            loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch):
            return {"error": torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])}


    CONFIG = {
        "hyperparameters": {"lr": det.Log(-2, -1), "global_batch_size": det.Constant(8)},
        "searcher": {"name": "single", "metric": "error", "max_steps": 1},
        "batches_per_step": 6,
    }
"""
OF_12 = """
    if __name__ == "__main__":
        experimental.create(
            trial_def=LineTrial,
            config=CONFIG,
            mode=experimental.Mode.CLUSTER,
            context_dir=".",
            master_url="http://master:8080",
        )
"""
OF_13 = """
    if __name__ == "__main__":
        parser = argparse.ArgumentParser()
        parser.add_argument("--local", action="store_true")
        parser.add_argument("--test", action="store_true")
        args = parser.parse_args()
        experimental.create(LineTrial, CONFIG, local=args.local, test=args.test, context_dir=".", master_url=None)
"""
INSTANCE = """
    if __name__ == "__main__":
        trial = experimental.create_trial_instance(LineTrial, checkpoint_dir="/tmp", config=CONFIG, hparams={"lr": 0.5})
        for index, batch in enumerate(trial.build_training_data_loader()):
            print("loss", trial.train_batch(batch, 0, index)["loss"].item())
        print("context of", type(trial).__name__, 0.5 == trial.context.get_hparam("lr"), trial.context.get_trial_id())
"""


@pytest.fixture
def script(det: Any, write: Any) -> Any:
    """Run the trial with a main program of some generation."""

    def run(main: str, *arguments: str) -> str:
        write(train__py=textwrap.dedent(TRIAL) + textwrap.dedent(main))
        done = subprocess.run(
            [sys.executable, "train.py", *arguments],
            cwd=det.cwd,
            env=det.env(None),
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.thorough
def test_a_script_that_names_its_master_is_submitted_and_trained(det: Any, script: Any) -> None:
    script(OF_12)
    assert det.json("show", "1")["experiment"]["state"] == "COMPLETED"
    assert [row["batches"] for row in det.metrics(1, "validation")] == [6]


def test_a_script_with_flags_trains_here(script: Any) -> None:
    assert "batch 6 validation: error=" in script(OF_13, "--local")


def test_a_script_that_is_tested_trains_one_batch(script: Any) -> None:
    assert "batch 1 validation: error=" in script(OF_13, "--local", "--test")


@pytest.mark.thorough
def test_a_trial_is_made_to_be_looked_at(script: Any) -> None:
    *losses, last = script(INSTANCE).splitlines()
    assert last == "context of LineTrial True 0"
    assert len(losses) == 4
    assert float(losses[-1].split()[1]) < float(losses[0].split()[1])


def test_a_native_context_is_one_of_det(tmp_path: Path) -> None:
    import determined as det
    from det_driver.native import NativeContext
    from determined import experimental

    assert det.NativeContext is experimental.NativeContext is NativeContext
