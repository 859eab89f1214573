"""`create()` with a PyTorchTrial.

The script is the experiment, and its checkpoints load without it.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

from det_torch import load_trial_from_checkpoint_path

SCRIPT = """
    import torch
    from torch.utils.data import TensorDataset
    from det_driver.native import Categorical, create
    from det_torch import DataLoader, PyTorchTrial

    class Native(PyTorchTrial):
        def __init__(self, context):
            self.context = context
            self.model = context.wrap_model(torch.nn.Linear(1, 1))
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("lr")))

        def build_training_data_loader(self):
            x = torch.linspace(-1, 1, 32).reshape(-1, 1)
            return DataLoader(TensorDataset(x, 2 * x), batch_size=8)

        build_validation_data_loader = build_training_data_loader

        def train_batch(self, batch, epoch_idx, batch_idx):
            loss = ((self.model(batch[0]) - batch[1]) ** 2).mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return {"loss": loss}

        def evaluate_batch(self, batch):
            return {"error": ((self.model(batch[0]) - batch[1]) ** 2).mean()}

    searcher = {"name": "adaptive_asha", "metric": "error", "max_trials": 3, "max_length": {"epochs": 4}}
    create(Native, {"searcher": searcher, "hyperparameters": {"lr": Categorical([0.01, 0.05, 0.2])}}, context_dir=".")
    print("reached by", __name__)
"""


def test_a_search_by_a_script_and_a_checkpoint_of_it(det):
    det.cwd.joinpath("train.py").write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=det.cwd,
        env=det.env(None),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reached by" not in done.stdout + done.stderr + det("logs", "1").stdout
    shown = det.json("show", "1")
    assert {trial["state"] for trial in shown["trials"]} == {"COMPLETED"}
    path = next(
        path for path in det.home.glob("checkpoints/*") if (path / "load_data.json").is_file()
    )
    trial = load_trial_from_checkpoint_path(path)
    assert type(trial).__name__ == "Native"
    det("show", "2", status=2)  # loading has submitted nothing
