"""Projects with a trial, and checkpoints as det and Determined wrote them."""

from __future__ import annotations

import json
import pickle
import random
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

MODEL_DEF = """
    import torch
    from torch import nn

    from det_torch import PyTorchTrial
    from layers import width_of


    class Trial(PyTorchTrial):
        name = {name!r}

        def __init__(self, context, scale=1):
            self.context, self.scale = context, scale
            self.model = context.wrap_model(nn.Linear(width_of(context.get_hparams()), 1))
            self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

        def build_training_data_loader(self):
            return [torch.ones(4, self.model.in_features)]

        build_validation_data_loader = build_training_data_loader

        def train_batch(self, batch, epoch_idx, batch_idx):
            loss = self.model(batch).mean()
            self.context.backward(loss)
            self.context.step_optimizer(self.optimizer)
            return loss

        def evaluate_batch(self, batch):
            return {{"score": self.model(batch).mean()}}


    class Outer:
        class Inner(Trial):
            pass
"""
LAYERS = """
    def width_of(hparams):
        return hparams.get("width", {width})
"""


def write_code(directory: Path, name: str = "first", width: int = 3) -> Path:
    """Write a project: a trial, and a module that it imports."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model_def.py").write_text(textwrap.dedent(MODEL_DEF.format(name=name)).lstrip())
    (directory / "layers.py").write_text(textwrap.dedent(LAYERS.format(width=width)).lstrip())
    return directory


def weights(width: int = 3, prefix: str = "") -> dict[str, torch.Tensor]:
    """The weights of the trial's model: 0, 1, 2 … and a bias of 5."""
    state = nn.Linear(width, 1).state_dict()
    state["weight"].copy_(torch.arange(width).float())
    state["bias"].fill_(5.0)
    return {f"{prefix}{name}": value for name, value in state.items()}


def old_state(width: int = 3, **changes: Any) -> dict[str, Any]:
    """The contents of `state_dict.pth` as Determined 0.38 wrote them."""
    optimizer = torch.optim.SGD(nn.Linear(width, 1).parameters(), lr=0.1)
    return {
        "models_state_dict": [weights(width)],
        "optimizers_state_dict": [optimizer.state_dict()],
        "lr_schedulers_state_dict": [
            {"step_size": 1, "gamma": 0.1, "last_epoch": 4, "_last_lr": [0.1]}
        ],
        "callbacks": {"early": {"best": 0.5}},
        "rng_state": {
            "cpu_rng_state": torch.random.get_rng_state(),
            "np_rng_state": np.random.get_state(),
            "random_rng_state": random.getstate(),
        },
        **changes,
    }


def write_old(
    directory: Path,
    state: dict[str, Any] | None = None,
    *,
    file: str = "state_dict.pth",
    load_data: bool = True,
) -> Path:
    """Write a checkpoint with all the files that Determined's had."""
    write_code(directory / "code")
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    torch.save(old_state() if state is None else state, directory / file)
    config = {
        "entrypoint": "model_def:Trial",
        "hyperparameters": {"width": {"type": "const", "val": 3}},
        "data": {"a": 1},
    }
    metadata = {
        "determined_version": "0.38.1",
        "steps_completed": 40,
        "framework": "torch-2.1.0",
        "format": "pickle",
    }
    if load_data:
        document = {
            "trial_type": "PyTorchTrial",
            "experiment_config": config,
            "hparams": {"width": 3},
            "trial_cls_spec": "model_def:Trial",
            "is_trainer": True,
        }
        (directory / "load_data.json").write_text(json.dumps(document))
    else:
        metadata |= {"experiment_config": config, "hparams": {"width": 3}}
    (directory / "metadata.json").write_text(json.dumps(metadata))
    counters = {
        "trial_id": 1,
        "last_ckpt": 40,
        "step_id": 4,
        "last_val": 40,
        "batches_trained": 40,
        "epochs_trained": 1,
    }
    (directory / "trial_state.pkl").write_bytes(pickle.dumps(counters))
    (directory / "workload_sequencer.pkl").write_bytes(
        pickle.dumps({"trial_id": 1, "latest_batch": 40})
    )
    return directory


def as_numpy_1_named_them(file: Path) -> None:
    """Rename NumPy's private modules in a saved state to what they were called before NumPy 2."""
    with zipfile.ZipFile(file) as archive:
        members = {info: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for info, data in members.items():
            archive.writestr(
                info, data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            )


@pytest.fixture
def old(tmp_path: Path) -> Callable[..., Path]:
    return lambda *args, name="old", **kwargs: write_old(tmp_path / name, *args, **kwargs)


@pytest.fixture(autouse=True)
def imports_as_before() -> Iterator[None]:
    """Undo what a load leaves for imports inside functions."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("model_def", "layers"):
            del sys.modules[name]


class Payload:
    """Touches a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, (f"open({str(self.file)!r}, 'w').close()",))
