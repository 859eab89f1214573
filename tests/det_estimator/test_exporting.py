"""`det checkpoint export --format`.

A program that does not have det finds the metric that was reported.
"""

from __future__ import annotations

import pytest
from tests.support.exporting import trained

pytestmark = pytest.mark.process

pytest.importorskip("sklearn")
CONFIG = """
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters: {lr: 0.1, momentum: 0.9, hidden: 32, dropout: 0.2, global_batch_size: 64}
searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {batches: 60}}
reproducibility: {experiment_seed: 1}
"""
READ = """
import tensorflow as tf
model = tf.saved_model.load(place).signatures["serving_default"]
predict = lambda x: model(image=tf.constant(x))["digit"].numpy()
"""


@pytest.mark.thorough
def test_a_program_without_det_finds_the_metric_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    digits = trained(tmp_path_factory.mktemp("trained"), "digits_estimator", CONFIG)
    assert digits.evaluates("saved-model", READ, 200, weighted=True) == pytest.approx(
        digits.accuracy, abs=1e-6
    )
