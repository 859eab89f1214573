"""`det checkpoint export --format`.

A program that does not have det finds the metric that was reported.
"""

from __future__ import annotations

import json

import pytest
from tests.support.exporting import NEEDS, PROGRAMS, Trained, trained

pytestmark = pytest.mark.process

pytest.importorskip("sklearn")
CONFIG = """
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters: {lr: 0.1, momentum: 0.9, hidden: 32, dropout: 0.2, global_batch_size: 64, workers: 0}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {batches: 60}}
reproducibility: {experiment_seed: 1}
"""
READS = {
    "safetensors": (
        """
        import torch
        from safetensors.torch import load_model
        layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(32, 10)
        model = torch.nn.Sequential(*layers).eval()
        load_model(model, place + "/model.safetensors")
        predict = lambda x: model(torch.tensor(x)).argmax(1).numpy()
    """
    ),
    **PROGRAMS,
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("trained"), "digits_torch", CONFIG)


@pytest.mark.thorough
@pytest.mark.parametrize("form", READS)
def test_a_program_without_det_finds_the_metric_again(digits: Trained, form: str) -> None:
    for package in NEEDS.get(form, []):
        pytest.importorskip(package)
    assert digits.evaluates(form, READS[form], 200) == pytest.approx(digits.accuracy, abs=1e-6)
    told = json.loads((digits.det.cwd / form / "config.json").read_text())
    assert told["hyperparameters"]["hidden"] == 32
    assert list(digits.det.cwd.glob(".det-export*")) == []


def test_what_cannot_be_exported_is_said_and_nothing_is_left(digits: Trained) -> None:
    det, uuid = digits.det, digits.uuid
    said = det("checkpoint", "export", "--format", "safetensor", uuid, "new", status=2).stderr
    assert said.startswith(
        f"det: checkpoint {uuid} was not exported: the framework torch has no format 'safetensor',"
        " but: "
    )
    assert said.endswith("onnx, safetensors, torch-export; did you mean 'safetensors'?\n")
    (det.cwd / "held").mkdir()
    (det.cwd / "held" / "mine").touch()
    assert (
        "held is not empty"
        in det("checkpoint", "export", "--format", "onnx", uuid, "held", status=2).stderr
    )
    assert not (det.cwd / "new").exists()
