"""An estimator with BatchNorm: as TensorFlow alone trains it, on one rank.

And what two ranks report is in the checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.det_estimator import normalized

from det_core import At, Every, Schedule
from det_testing._play import Cast, Request, play

LENGTH = 12
HPARAMS = {"global_batch_size": normalized.BATCH}


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_one_rank_trains_as_the_estimator_alone_does(
    lab: Any, tmp_path: Path, resumed: bool
) -> None:
    schedule = Schedule(report=Every(1), checkpoint=At({7}), policy="none")
    run = lab(normalized.Normalized, 7 if resumed else LENGTH, schedule=schedule, hparams=HPARAMS)
    if resumed:
        run = lab(
            normalized.Normalized,
            LENGTH,
            schedule=schedule,
            hparams=HPARAMS,
            checkpoint=run.checkpoints[7],
        )
    folder = str(tmp_path / "alone")
    normalized.alone(folder).train(
        lambda: normalized.records().batch(normalized.BATCH).repeat(), steps=LENGTH
    )
    reader = tf.train.load_checkpoint(folder)
    found = lab.variables(run.checkpoints[LENGTH])
    for name in reader.get_variable_to_shape_map():
        np.testing.assert_array_equal(found[name], reader.get_tensor(name), err_msg=name)
    expected = normalized.evaluated(folder)
    assert {name: run.validation[LENGTH][name] for name in ("loss", "off")} == {
        name: pytest.approx(float(expected[name]), rel=1e-6) for name in ("loss", "off")
    }


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What two ranks did, on the chief, and where its checkpoints are."""
    pytest.importorskip("horovod.tensorflow")
    folder = tmp_path_factory.mktemp("normalized")
    cast = Cast(
        trial=normalized.Normalized,
        framework="estimator",
        hooks="det_estimator._hooks",
        backend="horovod",
    )
    requests = [
        Request(name="whole", length=LENGTH, save_at=[7], hparams=HPARAMS),
        Request(name="resumed", length=LENGTH, behind=("whole", 7), hparams=HPARAMS),
        Request(name="preempted", length=LENGTH, preempt_at=5, hparams=HPARAMS),
        Request(name="gone on", length=LENGTH, behind=("preempted", 5), hparams=HPARAMS),
    ]
    chief, _ = play(cast, requests, folder)
    return chief, folder / "checkpoints"


def test_two_ranks_report_what_the_estimator_alone_evaluates(played: Any, tmp_path: Path) -> None:
    """The estimator alone evaluates the checkpoint of the two ranks."""
    runs, checkpoints = played
    found = tf.train.latest_checkpoint(str(checkpoints / runs["whole"].checkpoints[LENGTH]))
    expected, reported = (
        normalized.evaluated(str(tmp_path), found),
        runs["whole"].validations[LENGTH],
    )
    assert reported["off"] == pytest.approx(float(expected["off"]), rel=1e-5)


@pytest.mark.parametrize("name", ["resumed", "gone on"])
def test_it_does_not_matter_when_a_run_was_saved_or_interrupted(played: Any, name: str) -> None:
    runs, _ = played
    assert runs[name].losses.items() <= runs["whole"].losses.items()
    assert runs[name].validations[LENGTH] == runs["whole"].validations[LENGTH]
