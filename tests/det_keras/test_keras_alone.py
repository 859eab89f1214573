"""Models that users bring, trained by det and by Keras alone.

The same weights and metrics, bit for bit, also after a SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests.det_keras import models
from tests.det_keras.test_ends import EPOCH, EPOCHS, LENGTH, Whole
from tests.support.thorough import sample

from det_core import At, Every, Plugins, Schedule
from det_keras import weights
from det_keras.rng import seed_everything
from det_keras.state import read_state
from det_keras.versions import keras
from det_testing import Runs

TRIALS = {
    kind.__name__: kind
    for kind in (models.Several, models.NeverCalled, models.Averaged, models.Convolutions)
}
SCHEDULE = Schedule(report=Every(EPOCH), validate=Every(EPOCH), checkpoint=At({7}), policy="none")
HPARAMS = {"global_batch_size": models.BATCH}

KILLED = """
import sys
import zipfile
from pathlib import Path
from det_core import Plugins
from tests.det_keras import test_keras_alone

test_keras_alone.be_killed(sys.argv[1], Path(sys.argv[2]))
"""


def be_killed(name: str, folder: Path) -> None:
    """Train a trial, and kill this process in the middle of an epoch, behind the one checkpoint."""

    class Killed(TRIALS[name]):  # type: ignore[misc]
        def keras_callbacks(self) -> list[Any]:
            done = []
            count = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: done.append(batch)
            )
            kill = keras.callbacks.LambdaCallback(
                on_train_batch_begin=lambda batch, logs: (
                    os.kill(os.getpid(), signal.SIGKILL) if len(done) == 10 else None
                )
            )
            return [count, kill]

    Whole(Plugins.installed(strict=True), Killed, folder)(LENGTH, schedule=SCHEDULE, **HPARAMS)


@pytest.fixture(params=TRIALS)
def trial(request: pytest.FixtureRequest) -> Any:
    return TRIALS[request.param]


@pytest.fixture
def whole(trial: Any, plugins: Plugins, tmp_path: Path) -> Runs:
    return Whole(plugins, trial, tmp_path)


def alone(trial: Any) -> tuple[Any, dict[str, Any]]:
    """Return the model as Keras alone trains it, and what it says of each epoch."""
    seed_everything(1)
    model = trial.compiled()
    x, y = trial.training
    options = {"validation_data": trial.validation, "validation_batch_size": models.BATCH}
    history = model.fit(
        x, y, batch_size=models.BATCH, epochs=EPOCHS, shuffle=False, verbose=0, **options
    )
    return model, history.history


def saved_in(directory: Path, trial: Any) -> Any:
    """Return the model of a checkpoint, by Keras alone.

    From its description, or by its own code, once it was trained.
    """
    if trial is not models.NeverCalled:
        return keras.models.load_model(str(directory / "model.keras"))
    model, _ = alone(trial)
    weights.see_built(model)
    model.load_weights(str(weights.weights_file(directory)))
    return model


def assert_same(found: Any, directory: Path, trial: Any) -> None:
    model, history = alone(trial)
    for mine, theirs in zip(
        saved_in(directory, trial).get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    names = [name for name in history if name.startswith("val_")]
    for place in range(
        1, EPOCHS + (trial is not models.Averaged)
    ):  # the last one is of the averages
        reported = found.validations.get(place * EPOCH)
        if reported is not None:
            assert {name: reported[name] for name in names} == {
                name: history[name][place - 1] for name in names
            }


@pytest.mark.slow
def test_det_trains_as_keras_alone_does(trial: Any, whole: Runs, tmp_path: Path) -> None:
    found = whole(LENGTH, schedule=SCHEDULE, **HPARAMS)
    assert list(found.validations) == [EPOCH, 2 * EPOCH, LENGTH]
    assert_same(found, tmp_path / "checkpoints" / found.checkpoints[LENGTH], trial)


@pytest.mark.sample
@pytest.mark.process
def test_a_run_that_was_killed_goes_on_as_keras_alone_would_have(
    trial: Any, whole: Runs, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", KILLED, trial.__name__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    (checkpoint,) = os.listdir(tmp_path / "checkpoints")
    found = whole(LENGTH, schedule=SCHEDULE, checkpoint=checkpoint, **HPARAMS)
    assert min(found.validations) == 2 * EPOCH
    assert_same(found, tmp_path / "checkpoints" / found.checkpoints[LENGTH], trial)


def arrays_in(directory: Path) -> int:
    """Return how many arrays of optimizers Keras's file in a checkpoint has."""
    names: list[str] = []
    with contextlib.ExitStack() as stack:
        file: Any = weights.weights_file(directory)
        if file.name == weights.MODEL:
            file = stack.enter_context(
                stack.enter_context(zipfile.ZipFile(file)).open(weights.WEIGHTS)
            )
        found = stack.enter_context(h5py.File(file))
        found.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
    return sum(name.startswith(("optimizer/", "of_")) for name in names)


@pytest.mark.slow
@pytest.mark.sample
def test_a_checkpoint_holds_the_state_of_optimizers_once(whole: Runs, tmp_path: Path) -> None:
    found = whole(7, schedule=SCHEDULE, **HPARAMS)
    directory = tmp_path / "checkpoints" / found.checkpoints[7]
    assert arrays_in(directory) == 0
    assert all(state["variables"] for state in read_state(directory)["optimizers"])


@pytest.mark.slow
@pytest.mark.parametrize("trial", sample(TRIALS, {"NeverCalled"}), indirect=True)
def test_one_that_holds_it_twice_as_all_did_once_still_goes_on(
    trial: Any, whole: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(weights, "_without_optimizers", lambda model: contextlib.nullcontext())
        older = whole(7, schedule=SCHEDULE, **HPARAMS).checkpoints[7]
    assert arrays_in(tmp_path / "checkpoints" / older) > 0
    found = whole(LENGTH, schedule=SCHEDULE, checkpoint=older, **HPARAMS)
    assert_same(found, tmp_path / "checkpoints" / found.checkpoints[LENGTH], trial)
