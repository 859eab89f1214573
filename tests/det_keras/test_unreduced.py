"""What no reduction of gradients keeps equal, on two ranks.

BatchNorm's statistics, and weights that a step changes by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_keras import models

from det_keras.rng import seed_everything
from det_keras.versions import keras
from det_testing._play import Cast, Request, play

pytestmark = pytest.mark.process

LENGTH = 12
HPARAMS = {"global_batch_size": models.BATCH}
BOUND = 1e-5
"""What docs/guides/keras.md says of the largest difference of a weight.

Sums are added up in another order.
"""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What two ranks did with a CNN, on the chief, and where its checkpoints are."""
    folder = tmp_path_factory.mktemp("unreduced")
    cast = Cast(
        trial=models.Convolutions,
        framework="keras",
        hooks="det_keras._hooks",
        backend="collectives",
    )
    requests = [
        Request(name="whole", length=LENGTH, save_at=[7], hparams=HPARAMS),
        Request(name="seldom", length=LENGTH, hparams=HPARAMS),
        Request(name="resumed", length=LENGTH, behind=("whole", 7), hparams=HPARAMS),
        Request(name="preempted", length=LENGTH, preempt_at=5, hparams=HPARAMS),
        Request(name="gone on", length=LENGTH, behind=("preempted", 5), hparams=HPARAMS),
    ]
    chief, _ = play(cast, requests, folder)
    return chief, folder / "checkpoints"


@pytest.fixture
def checkpoint(played: Any) -> Any:
    """The model of the last checkpoint, loaded by Keras alone."""
    runs, checkpoints = played
    return keras.models.load_model(
        str(checkpoints / runs["whole"].checkpoints[LENGTH] / "model.keras")
    )


@pytest.mark.thorough
@pytest.mark.slow
def test_reported_metrics_are_what_keras_alone_evaluates(played: Any, checkpoint: Any) -> None:
    reported = played[0]["whole"].validations[LENGTH]
    found = checkpoint.evaluate(
        *models.VALIDATION, batch_size=models.BATCH, verbose=0, return_dict=True
    )
    assert reported["val_loss"] == pytest.approx(found["loss"], rel=1e-6)
    assert reported["val_accuracy"] == pytest.approx(found["accuracy"], rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["seldom", "resumed", "gone on"])
def test_it_does_not_matter_when_a_run_was_saved_or_interrupted(played: Any, name: str) -> None:
    runs, _ = played
    whole, other = runs["whole"], runs[name]
    assert other.losses.items() <= whole.losses.items()
    assert other.validations[LENGTH] == whole.validations[LENGTH]


def test_two_ranks_train_as_two_replicas_averaged_by_hand(checkpoint: Any) -> None:
    """Each has the statistics of its own half of a batch.

    Gradients are averaged in each step, statistics at the end.
    """
    for mine, found in zip(by_hand(LENGTH, 2), checkpoint.get_weights(), strict=True):
        np.testing.assert_allclose(found, mine, atol=BOUND, rtol=0)


def by_hand(length: int, size: int) -> list[Any]:
    seed_everything(1)
    model = models.convolutions()
    statistics = [[each.numpy() for each in model.non_trainable_variables] for _ in range(size)]

    def take_up(values: list[Any]) -> None:
        for variable, value in zip(model.non_trainable_variables, values, strict=True):
            variable.assign(value)

    share = models.BATCH // size
    for batch in range(length):
        gradients = []
        for rank in range(size):
            first = batch % (len(models.IMAGES) // models.BATCH) * models.BATCH + rank * share
            take_up(statistics[rank])
            with tf.GradientTape() as tape:
                outputs = model(models.IMAGES[first : first + share], training=True)
                loss = model.loss(models.LABELS[first : first + share], outputs)
            gradients.append(tape.gradient(loss, model.trainable_variables))
            statistics[rank] = [each.numpy() for each in model.non_trainable_variables]
        means = [sum(each) / size for each in zip(*gradients, strict=True)]
        model.optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))
    take_up([np.mean(each, axis=0) for each in zip(*statistics, strict=True)])
    return list(model.get_weights())


@pytest.mark.slow
def test_weights_that_a_step_changes_by_itself_are_not_saved(tmp_path: Path) -> None:
    cast = Cast(
        trial=models.Unreduced, framework="keras", hooks="det_keras._hooks", backend="collectives"
    )
    with pytest.raises(RuntimeError, match="the weights of rank 1 differ from those of rank 0"):
        play(cast, [Request(name="unreduced", length=2, hparams=HPARAMS)], tmp_path)
