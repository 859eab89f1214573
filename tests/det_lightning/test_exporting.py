"""`det checkpoint export --format` of a LightningModule: the parts that its validation calls."""

from __future__ import annotations

import pytest
from tests.support.exporting import NEEDS, PROGRAMS, Trained, trained
from tests.support.thorough import sample

pytestmark = pytest.mark.process

pytest.importorskip("sklearn")
pytest.importorskip("torchmetrics")
CONFIG = """
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters: {lr: 0.1, momentum: 0.9, hidden: 32, dropout: 0.2, global_batch_size: 64}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {batches: 60}}
reproducibility: {experiment_seed: 1}
"""
READS = {
    "safetensors": (
        """
        import torch
        from safetensors.torch import load_file
        layers = torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(32, 10)
        model = torch.nn.Sequential(*layers).eval()
        weights = load_file(place + "/model.safetensors")
        model.load_state_dict({name[6:]: weights[name] for name in weights if name.startswith("model.")})
        predict = lambda x: model(torch.tensor(x)).argmax(1).numpy()
    """
    ),
    **PROGRAMS,
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("trained"), "digits_lightning", CONFIG)


@pytest.mark.thorough
@pytest.mark.parametrize("form", sample(READS, {"onnx"}))
def test_a_program_without_det_finds_the_metric_again(digits: Trained, form: str) -> None:
    for package in NEEDS.get(form, []):
        pytest.importorskip(package)
    assert digits.evaluates(form, READS[form], 200, weighted=True) == pytest.approx(
        digits.accuracy, abs=1e-6
    )
