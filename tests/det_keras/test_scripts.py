"""Scripts with a DeterminedCallback under `det run`: paused, killed, on one worker and on two."""

from __future__ import annotations

import os
import re
import signal
import textwrap

import pytest

pytest.importorskip("tensorflow")

SCRIPT = """
    import hashlib, os, signal, sys, time
    import numpy as np
    from det_core import core
    from det_keras import DeterminedCallback, TensorBoard
    from det_keras.rng import seed_everything
    from det_keras.versions import keras

    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    y = np.random.default_rng(1).integers(0, 3, 32)
    info = core.get_cluster_info()
    distributed, strategy = core.DistributedContext.from_tf_config()
    seed_everything(info.trial.trial_seed)

    class Trouble(keras.callbacks.Callback):
        # of the first run only, in its third epoch: SIGNAL to the rank WHERE
        def on_epoch_begin(self, epoch, logs=None):
            time.sleep(float(os.environ.get("PAUSE", "0")))

        def on_train_batch_begin(self, batch, logs=None):
            first = os.environ["DET_TRIAL_RUN_ID"] == "1" and distributed.rank == int(os.environ.get("WHERE", "0"))
            if first and "SIGNAL" in os.environ and self.epochs == 2 and batch == 1:
                os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))

        epochs = 0
        def on_epoch_end(self, epoch, logs=None):
            self.epochs += 1

    with core.init(distributed=distributed) as context:
        with strategy.scope():
            layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input((4,)), *layers[:: 2 if distributed.size > 1 else 1]])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        callback = DeterminedCallback(context, info.latest_checkpoint, info.trial.trial_id)
        board = TensorBoard(context, log_dir="elsewhere", profile_batch=0)
        data = {"x": x, "y": y, "batch_size": 8, "shuffle": False, "validation_data": (x, y)}
        model.fit(**data, epochs=5, verbose=2, callbacks=[Trouble(), callback, board])
        digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
        print(f"weights of rank {distributed.rank}: {digest}", flush=True)
"""
CONFIG = """
    name: script
    entrypoint: ENTRYPOINT
    resources: {slots_per_trial: SLOTS}
    searcher: {name: single, metric: val_loss}
    reproducibility: {experiment_seed: 4}
    max_restarts: 1
"""
ALONE = "python3 train.py"
TWO = "python3 -m det_core.launch.tensorflow -- python3 train.py"
ENV = {"DET_SLOTS_TOTAL": "2", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def project(det):
    """Write a configuration for an entrypoint; `det run c.yaml` then trains it."""

    def write(entrypoint: str, slots: int = 1) -> None:
        det.cwd.joinpath("train.py").write_text(textwrap.dedent(SCRIPT))
        text = textwrap.dedent(CONFIG).replace("ENTRYPOINT", entrypoint).replace("SLOTS", str(slots))
        det.cwd.joinpath("c.yaml").write_text(text)

    return write


def run(det, **env: str) -> None:
    """Run the experiment to its end; two workers that share a core with other tests take their time."""
    driver = det.start("run", "c.yaml", env={**ENV, **env})
    output, _ = driver.communicate(timeout=280)
    assert driver.returncode == 0, output


def digests(det, experiment: int) -> dict[int, str]:
    """Return the last weights that each rank printed."""
    found = re.findall(r"weights of rank (\d): (\w{64})", det("logs", str(experiment)).stdout)
    return {int(rank): digest for rank, digest in found}


def numbers(det, experiment: int) -> list[tuple]:
    return [(m["group"], m["batches"], m["loss"], m["accuracy"]) for m in det.metrics(experiment)]


def test_a_script_that_is_signalled_or_killed_within_an_epoch_goes_on_to_the_numbers_of_one_that_was_not(det, project):
    project(ALONE)
    det("run", "c.yaml", env=ENV)
    det("run", "c.yaml", env={**ENV, "SIGNAL": "SIGTERM"})
    det("run", "c.yaml", env={**ENV, "SIGNAL": "SIGKILL"})
    for disturbed, restarts, came_to in ((2, 0, 12), (3, 1, 8)):
        assert digests(det, disturbed) == digests(det, 1)
        assert numbers(det, disturbed) == numbers(det, 1)
        [trial] = det.json("show", str(disturbed))["trials"]
        assert (trial["runs"], trial["restarts"]) == (2, restarts)
        assert f"training goes on after epoch {came_to // 4}, batch {came_to}" in det("logs", str(disturbed)).stdout


def test_tensorboard_writes_where_det_looks(det, project):
    project(ALONE)
    det("run", "c.yaml", env=ENV)
    place = det.home / "experiments" / "1" / "tensorboard" / "trial-1"
    assert {path.parent.name for path in place.rglob("*tfevents*.v2")} == {"train", "validation"}
    assert f"det: log_dir 'elsewhere' of TensorBoard is not used; the files go to {place}" in det("logs", "1").stdout
    [code] = det.home.glob("experiments/1/code")
    assert not (code / "elsewhere").exists()
    [stored] = det.home.glob("checkpoints/tensorboard-*")
    assert {path.parent.name for path in stored.rglob("*tfevents*.v2")} == {"train", "validation"}


def test_a_paused_script_goes_on_where_it_was(det, project, wait_until):
    project(ALONE)
    driver = det.start("run", "c.yaml", env={**ENV, "PAUSE": "0.5"})
    wait_until(
        lambda: det.home.joinpath("experiments/1/experiment.db").exists() and len(det.metrics(1)) > 1, "an epoch", 100
    )
    os.kill(driver.pid, signal.SIGINT)
    output, _ = driver.communicate(timeout=60)
    assert driver.returncode == 130, output
    paused = len(det.metrics(1, "training"))
    assert 0 < paused < 5
    det("resume", "1", env=ENV)
    assert [m["epochs"] for m in det.metrics(1, "training")] == [1, 2, 3, 4, 5]
    assert f"training goes on after epoch {paused}, " in det("logs", "1").stdout


def test_a_trial_that_begins_with_anothers_checkpoint_begins_at_its_first_epoch(det, project):
    project(ALONE)
    det("run", "c.yaml", env=ENV)
    config = det.cwd.joinpath("c.yaml")
    config.write_text(config.read_text().replace("metric: val_loss", "metric: val_loss, source_trial_id: 1"))
    det("run", "c.yaml", env=ENV)
    assert "training begins at epoch 0 with the model of checkpoint" in det("logs", "2").stdout
    assert [m["epochs"] for m in det.metrics(2, "training")] == [1, 2, 3, 4, 5]
    assert det.metrics(2, "training")[0]["loss"] < det.metrics(1, "training")[0]["loss"]


@pytest.mark.timeout(600)
def test_two_workers_have_the_same_weights_and_go_on_when_one_of_them_is_signalled(det, project):
    project(TWO, slots=2)
    run(det)
    run(det, SIGNAL="SIGTERM", WHERE="1")
    first, second = digests(det, 1), digests(det, 2)
    assert set(first) == {0, 1}
    assert len({*first.values(), *second.values()}) == 1, (first, second)
    assert numbers(det, 2) == numbers(det, 1)
    assert det.json("show", "2")["trials"][0]["runs"] == 2
