"""`det checkpoint export --format`.

A program that does not have det finds the metric that was reported.
"""

from __future__ import annotations

import pytest
from tests.det_keras.again import again
from tests.support.exporting import Trained, trained
from tests.support.thorough import sample

pytestmark = pytest.mark.process

pytest.importorskip("sklearn")
CONFIG = """
name: digits
entrypoint: model_def:DigitsTrial
hyperparameters: {lr: 0.1, momentum: 0.9, hidden: 32, dropout: 0.2, global_batch_size: 64}
searcher: {name: single, metric: val_accuracy, smaller_is_better: false, max_length: {batches: 60}}
reproducibility: {experiment_seed: 1}
"""
READS = {
    "keras": (
        """
        from tensorflow import keras
        model = keras.models.load_model(place + "/model.keras")
        predict = lambda x: model.predict(x, verbose=0).argmax(1)
    """
    ),
    "saved-model": (
        """
        import tensorflow as tf
        model = tf.saved_model.load(place)
        predict = lambda x: model.serve(x).numpy().argmax(1)
    """
    ),
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("trained"), "digits_keras", CONFIG)


@pytest.mark.thorough
@again
@pytest.mark.parametrize("form", sample(READS, {"saved-model"}))
def test_a_program_without_det_finds_the_metric_again(digits: Trained, form: str) -> None:
    assert digits.evaluates(form, READS[form], 200, weighted=True) == pytest.approx(
        digits.accuracy, abs=1e-6
    )
