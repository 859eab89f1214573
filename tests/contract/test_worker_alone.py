"""A worker's environment needs det-core, det-node and one framework's plugin.

It needs nothing else: no driver, no click, no rich.

The environment is made of the files that these distributions require, in an interpreter of its own;
the driver runs in this one, and hands its runs over by an engine that a stranger could have
written.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.support.distributions import lay_out, on_path

pytest.importorskip("det_torch")
pytestmark = pytest.mark.slow

NEVER = (
    "click",
    "rich",
    "packaging",
    "pathspec",
    "yaml",
    "pytest",
    "det_driver",
    "det_testing",
    "det_horovod",
)
ENGINE = """
import os

from det_core import EngineRecord, hookimpl
from det_driver.engines.local import LocalEngine


class Elsewhere(LocalEngine):
    def python(self):
        return ("env", "-u", "PYTHONPATH", os.environ["OTHER_PYTHON"], "-P", "-m", "det_node.agent", "-")

    def environ(self):
        return None


@hookimpl
def det_engines():
    yield EngineRecord(name="elsewhere", load=lambda: Elsewhere)
"""
MODEL = f"""
import sys

import torch

from det_torch import DataLoader, PyTorchTrial

found = [name for name in {NEVER!r} if __import__("importlib.util").util.find_spec(name)]
print("could import:", found, "from", sys.prefix, flush=True)


class Trial(PyTorchTrial):
    def build_model(self):
        return torch.nn.Linear(1, 1)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=self.context.get_hparam("lr"))

    def build_training_data_loader(self):
        return DataLoader(torch.arange(8.0).reshape(8, 1), batch_size=2, shuffle=True)

    build_validation_data_loader = build_training_data_loader

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = ((self.model(batch) - 2 * batch) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {{"loss": loss}}

    def evaluate_batch(self, batch):
        return {{"val_loss": ((self.model(batch) - 2 * batch) ** 2).mean()}}
"""
CONFIG = """
name: elsewhere
entrypoint: model_def:Trial
hyperparameters: {global_batch_size: 2, lr: 0.01}
searcher: {name: single, metric: val_loss, max_length: {batches: 12}}
min_validation_period: {batches: 6}
reproducibility: {experiment_seed: 3}
"""


def required(*names: str) -> set[str]:
    """Return the distributions that some require, themselves included, as pip would install them.

    No driver.
    """
    found: set[str] = set()
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            for text in metadata.requires(name) or ():
                requirement = Requirement(text)
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    wanted.append(requirement.name)
    return found


def link(site: Path, distribution: str) -> None:
    """Put what a distribution installed into another place."""
    found = metadata.distribution(distribution)
    for top in {
        file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")
    }:
        place = Path(str(found.locate_file(top)))
        if place.suffix != ".pth" and not (site / top).exists():
            (site / top).symlink_to(place)


@pytest.fixture(scope="module")
def worker_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with det-core, det-node, det-torch and what these need, and nothing else."""
    root = tmp_path_factory.mktemp("worker")
    venv.create(root, symlinks=True)
    [site] = root.glob("lib/python*/site-packages")
    for name in required("det-node", "torch", "numpy"):
        link(site, name)
    link(site, "det-torch")
    for name in ("det_core", "det_node", "det_torch"):
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        if not (site / name).exists():  # installed from the tree
            (site / name).symlink_to(Path(spec.origin).parent)
    return root / "bin" / "python"


@pytest.mark.parametrize(
    ("distribution", "needs"),
    [
        ("det-training-core", {"fsspec", "msgspec", "pluggy"}),
        ("det-node", {"cryptography", "det-training-core", "msgspec"}),
    ],
)
def test_core_and_node_require_few_distributions(distribution: str, needs: set[str]) -> None:
    direct = {
        Requirement(text).name
        for text in metadata.requires(distribution) or ()
        if "extra ==" not in text
    }
    assert {name.lower() for name in direct} == needs


def test_worker_trains_for_a_driver_in_another_environment(
    det, tmp_path, monkeypatch, worker_python
) -> None:
    site = lay_out(
        tmp_path / "site",
        "elsewhere",
        entry_points={"elsewhere": "elsewhere_engine"},
        modules={"elsewhere_engine": ENGINE},
    )
    monkeypatch.setenv("OTHER_PYTHON", str(worker_python))
    monkeypatch.setenv("PYTHONPATH", on_path(site)["PYTHONPATH"])
    det.cwd.joinpath("model_def.py").write_text(MODEL)
    det.cwd.joinpath("const.yaml").write_text(CONFIG)
    det("run", "const.yaml", "--engine", "elsewhere")
    det("run", "const.yaml")
    assert f"could import: [] from {worker_python.parents[1]}" in det("logs", "1").stdout
    here, there = (
        [(m["group"], m["batches"], m.get("val_loss")) for m in det.metrics(n)] for n in (2, 1)
    )
    assert there == here
    assert [batches for group, batches, _ in there if group == "validation"] == [6, 12]


def test_a_mistake_is_named_there_as_it_is_here(det, tmp_path, worker_python) -> None:
    """The worker's own command, without a run."""
    done = subprocess.run(
        [worker_python, "-P", "-m", "det_node.worker", "model_def:Trial"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "det_node.worker is started by det; run your trial with: det run CONFIG" in done.stderr
    code = "import json, sys, det_node.worker, det_torch; print(json.dumps(sorted(sys.modules)))"
    listed = subprocess.run(
        [worker_python, "-P", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert set(json.loads(listed.stdout)) & set(NEVER) == set()
    assert Path(sys.executable) != worker_python
