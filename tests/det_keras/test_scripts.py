"""Scripts with a DeterminedCallback under `det run`.

They are paused, signalled and killed, on one worker and on two.

A process that imports TensorFlow costs seconds, so that one experiment shows several things, and
Keras alone, which all is compared with, trains in a worker of it, behind the script's own training.
"""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap

import numpy as np
import pytest
from tests.det_keras.again import again

pytest.importorskip("tensorflow")

SCRIPT = """
    import hashlib, json, os, signal, sys, time
    import numpy as np
    from det_core import core
    from det_keras import DeterminedCallback, TensorBoard
    from det_keras.rng import seed_everything
    from det_keras.versions import keras

    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    y = np.random.default_rng(1).integers(0, 3, 32)
    data = {"x": x, "y": y, "batch_size": 8, "shuffle": False, "validation_data": (x, y), "epochs": 5}
    info = core.get_cluster_info()
    distributed, strategy = core.DistributedContext.from_tf_config()
    trouble = json.loads(os.environ.get("TROUBLE", "{}"))  # of each run: the signal, the rank that it is sent to, and the epoch

    class Trouble(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            time.sleep(float(os.environ.get("PAUSE", "0")))
            self.epoch = epoch

        def on_train_batch_begin(self, batch, logs=None):
            name, rank, epoch = trouble.get(os.environ["DET_TRIAL_RUN_ID"], ("", 0, 0))
            if name and (distributed.rank, self.epoch, batch) == (rank, epoch, 1):
                os.kill(os.getpid(), getattr(signal, name))

    def made():
        seed_everything(info.trial.trial_seed)
        with strategy.scope():
            layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input((4,)), *layers[:: 2 if distributed.size > 1 else 1]])
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
        return model

    def digest(model):
        return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()

    with core.init(distributed=distributed) as context:
        model = made()
        callback = DeterminedCallback(context, info.latest_checkpoint, info.trial.trial_id)
        board = TensorBoard(context, log_dir="elsewhere", profile_batch=0)
        model.fit(**data, verbose=2, callbacks=[Trouble(), callback, board])
        print(f"weights of rank {distributed.rank}: {digest(model)}", flush=True)
        if "ALONE" in os.environ and len(model.history.epoch) == 5:
            model = made()
            history = model.fit(**data, verbose=0).history
            print(f"alone rank {distributed.rank}: {digest(model)} {json.dumps(history)}", flush=True)
"""
CONFIG = """
    name: script
    entrypoint: ENTRYPOINT
    resources: {slots_per_trial: SLOTS}
    searcher: {name: single, metric: val_loss}
    reproducibility: {experiment_seed: 4}
    max_restarts: 1
    checkpoint_storage: {type: directory, container_path: KEPT}
"""
ALONE = "python3 train.py"
TWO = "python3 -m det_node.launch.tensorflow -- python3 train.py"
ENV = {"DET_SLOTS_TOTAL": "2", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def project(det):
    """Write a configuration for an entrypoint; `det run c.yaml` then trains it."""

    def write(entrypoint: str, slots: int = 1) -> None:
        det.cwd.joinpath("train.py").write_text(textwrap.dedent(SCRIPT))
        text = (
            textwrap.dedent(CONFIG).replace("ENTRYPOINT", entrypoint).replace("SLOTS", str(slots))
        )
        text = text.replace("KEPT", str(det.cwd / "kept"))
        det.cwd.joinpath("c.yaml").write_text(text)

    return write


def run(det, **env: str) -> str:
    """Run the experiment to its end, and return its log.

    Workers that share a core with other tests take their time.
    """
    driver = det.start("run", "c.yaml", env={**ENV, **env})
    output, _ = driver.communicate(timeout=560)
    assert driver.returncode == 0, output
    return det("logs", "1").stdout


def assert_trained_as_keras_alone(det, log: str, ranks: int) -> None:
    """Check each rank's last weights, and all reports, against a fit without det, bit for bit."""
    last = dict(re.findall(r"weights of rank (\d): (\w{64})", log))
    alone = {rank: digest for rank, digest, _ in re.findall(r"alone rank (\d): (\w{64}) (.*)", log)}
    assert len(last) == ranks
    assert last == alone
    assert len(set(last.values())) == 1
    history = json.loads(re.search(r"alone rank 0: \w{64} (.*)", log)[1])
    for group, prefix in (("training", ""), ("validation", "val_")):
        reported = det.metrics(1, group)
        assert [m["batches"] for m in reported] == [4, 8, 12, 16, 20]
        for name in ("loss", "accuracy"):
            assert [m[name] for m in reported] == history[f"{prefix}{name}"]


@pytest.mark.thorough
@pytest.mark.timeout(600)
@again
def test_script_killed_within_epochs_trains_as_keras_alone(det, project):
    """It is signalled within an epoch, too, and resumes each time where it was."""
    project(ALONE)
    log = run(det, TROUBLE='{"1": ["SIGTERM", 0, 1], "2": ["SIGKILL", 0, 3]}', ALONE="1")
    assert_trained_as_keras_alone(det, log, ranks=1)
    [trial] = det.json("show", "1")["trials"]
    assert (trial["runs"], trial["restarts"]) == (3, 1)
    assert "training goes on after epoch 2, batch 8, " in log  # the signal let the epoch end
    assert "training goes on after epoch 3, batch 12, " in log
    assert_tensorboard_writes_where_det_looks(det, log)


def assert_tensorboard_writes_where_det_looks(det, log: str) -> None:
    place = det.home / "experiments" / "1" / "tensorboard" / "trial-1"
    assert {path.parent.name for path in place.rglob("*tfevents*.v2")} == {"train", "validation"}
    assert f"det: log_dir 'elsewhere' of TensorBoard is not used; the files go to {place}" in log
    [code] = det.home.glob("experiments/1/code")
    assert not (code / "elsewhere").exists()
    stored = det.cwd.glob("kept/tensorboard-*")
    assert {path.parent.name for each in stored for path in each.rglob("*tfevents*.v2")} == {
        "train",
        "validation",
    }


@pytest.mark.thorough
@pytest.mark.timeout(600)
@again
def test_warm_started_script_begins_at_epoch_0_and_resumes(det, project, wait_until):
    project(ALONE)
    run(det)
    config = det.cwd.joinpath("c.yaml")
    config.write_text(
        config.read_text().replace("metric: val_loss", "metric: val_loss, source_trial_id: 1")
    )
    driver = det.start("run", "c.yaml", env={**ENV, "PAUSE": "0.5"})
    begun = det.home.joinpath("experiments/2/experiment.db")
    wait_until(lambda: begun.exists() and len(det.metrics(2)) > 1, "an epoch", 300)
    os.kill(driver.pid, signal.SIGINT)
    output, _ = driver.communicate(timeout=200)
    assert driver.returncode == 130, output
    paused = len(det.metrics(2, "training"))
    assert 0 < paused < 5
    det("resume", "2", env=ENV)
    log = det("logs", "2").stdout
    assert log.count("training begins at epoch 0 with the model of checkpoint") == 1
    assert f"training goes on after epoch {paused}, " in log
    assert [m["epochs"] for m in det.metrics(2, "training")] == [1, 2, 3, 4, 5]
    assert det.metrics(2, "training")[0]["loss"] < det.metrics(1, "training")[0]["loss"]


@pytest.mark.timeout(600)
@again
def test_two_workers_have_equal_weights_and_survive_a_signal(det, project):
    project(TWO, slots=2)
    log = run(det, TROUBLE='{"1": ["SIGTERM", 1, 2]}', ALONE="1")
    assert_trained_as_keras_alone(det, log, ranks=2)
    assert det.json("show", "1")["trials"][0]["runs"] == 2


PHASES = """
    import numpy as np
    from det_core import core
    from det_keras import DeterminedCallback
    from det_keras.versions import keras

    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    data = {"x": x, "y": x.sum(axis=1, keepdims=True), "batch_size": 8, "shuffle": False, "verbose": 0}
    info = core.get_cluster_info()
    checkpoint = info.latest_checkpoint

    with core.init() as context:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        for phase, rate in {"head": 0.05, "all": 1.1}.items():
            model.compile(keras.optimizers.SGD(rate), "mse")
            callbacks = [DeterminedCallback(context, checkpoint, f"{info.trial.trial_id}-{phase}")]
            model.fit(**data, validation_data=(x, data["y"]), epochs=3, callbacks=callbacks)
"""


@pytest.mark.timeout(600)
@again
def test_best_checkpoint_of_two_phases_is_the_best(det, project):
    """The second phase makes it worse. The default retention keeps the best and the latest."""
    from det_keras.versions import keras

    project(ALONE)
    det.cwd.joinpath("train.py").write_text(textwrap.dedent(PHASES))
    run(det)
    losses = {m["batches"]: m["loss"] for m in det.metrics(1, "validation")}
    assert list(losses) == [4, 8, 12, 16, 20, 24]
    best = min(losses, key=losses.__getitem__)
    assert best <= 12
    kept = {each["batches"]: each["uuid"] for each in det.json("checkpoint", "list", "1")}
    assert set(kept) == {best, 24}

    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    for batches, uuid in kept.items():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(), "mse")
        model.load_weights(str(det.cwd / "kept" / uuid / "model_checkpoint.weights.h5"))
        found = model.evaluate(x, x.sum(axis=1, keepdims=True), batch_size=8, verbose=0)
        assert found == pytest.approx(losses[batches], rel=1e-5)
