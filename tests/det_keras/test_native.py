"""The Native API for Keras: scripts that are their own experiments."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from det_core import ConfigError, TrialError
from det_driver.native import Categorical, Mode

pytest.importorskip("tensorflow")

import numpy as np
import tensorflow as tf
from tests.det_keras.again import again

import det_keras
from det_keras.versions import keras

EXAMPLES = Path(__file__).parents[2] / "examples"
X, Y = np.arange(40, dtype="float32").reshape(20, 2) / 40, np.arange(20) % 2
ENV = {"DET_SLOTS_TOTAL": "2", "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DET_HOME", str(tmp_path / "home"))


def compiled(context):
    model = context.wrap_model(keras.Sequential([keras.layers.Dense(1, activation="sigmoid")]))
    model.compile("sgd", "binary_crossentropy", run_eagerly=True)
    return model


def local(**hyperparameters):
    return det_keras.init({"hyperparameters": hyperparameters}, mode=Mode.LOCAL)


def test_local_gives_hyperparameters_and_trains_as_keras_does():
    context = local(units=Categorical([3]), lr=0.5)
    assert context.get_hparams() == {"units": 3, "lr": 0.5}
    assert (context.get_trial_id(), context.distributed.size) == (0, 1)
    history = compiled(context).fit(X, Y, epochs=3, batch_size=5, verbose=0)
    assert history.epoch == [0, 1, 2]
    assert history.params["steps"] == 4


def test_batches_are_those_of_fit_or_else_of_the_configuration():
    context = local(global_batch_size=10)
    assert compiled(context).fit(X, Y, verbose=0).params["steps"] == 2
    assert compiled(context).fit(X, Y, batch_size=4, verbose=0).params["steps"] == 5
    dataset = context.wrap_dataset(
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(context.get_global_batch_size())
    )
    assert compiled(context).fit(dataset, verbose=0).params["steps"] == 2


def test_class_weights_are_heeded():
    def loss(weights):
        return (
            compiled(local())
            .fit(X, Y, class_weight=weights, shuffle=False, verbose=0)
            .history["loss"][0]
        )

    assert loss({0: 2.0, 1: 2.0}) > loss(None) > loss({0: 0.0, 1: 0.0}) == 0.0


def test_the_seed_decides_the_weights():
    def weights(seed):
        config = {"reproducibility": {"experiment_seed": seed}}
        model = compiled(det_keras.init(config, mode="local"))
        model.build((None, 2))
        return model.get_weights()[0].tolist()

    assert weights(1) == weights(1) != weights(2)


def test_a_model_is_wrapped_once():
    context = local()
    model = compiled(context)
    fit = model.fit
    assert context.wrap_model(model).fit is fit


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: local().wrap_model("model"), TrialError, "wrap_model got str; give a keras.Model"),
        (
            lambda: local().wrap_dataset([1]),
            TrialError,
            "wrap_dataset got list; give a tf.data.Dataset",
        ),
        (
            lambda: det_keras.init({"searcher": {"name": "singel"}}, mode="local"),
            ConfigError,
            "singel",
        ),
        (lambda: local().get_hparam("lr"), ValueError, "no hyperparameter 'lr'; there are: none"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def python(det, *arguments: str, status: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=det.cwd,
        env=det.env({**ENV, **env}),
        capture_output=True,
        text=True,
        timeout=230,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


@again
def test_the_example_searches_by_running_itself_again(det):
    shutil.copy(EXAMPLES / "native_keras" / "train.py", det.cwd)
    text = det.cwd.joinpath("train.py").read_text()
    det.cwd.joinpath("train.py").write_text(
        text.replace('"max_trials": 3', '"max_trials": 2').replace("epochs=4", "epochs=2")
    )
    done = python(det, "train.py")
    assert "experiment 1 (native_keras) is submitted; its workers run train.py again" in done.stdout
    assert "experiment 1 is completed: best val_accuracy 0." in done.stdout
    assert "accuracy here" not in done.stdout
    logs = det("logs", "1").stdout
    assert logs.count("training has ended; what follows fit() in the script does not run") == 2
    assert "accuracy here" not in logs
    shown = det.json("show", "1")["trials"]
    assert len({trial["hparams"]["hidden"] for trial in shown}) == 2
    assert [
        len([m for m in det.metrics(1, "training") if m["trial"] == trial["id"]]) for trial in shown
    ] == [2, 2]


TWO = """
    import numpy as np
    import det_keras
    from det_keras.versions import keras

    config = {"resources": {"slots_per_trial": 2}, "searcher": {"name": "single", "metric": "val_loss"}, "max_restarts": 0}
    context = det_keras.init(config, context_dir=".")
    x, y = np.arange(40, dtype="float32").reshape(20, 2) / 40, np.arange(20) % 2
    model = context.wrap_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, activation="sigmoid")]))
    model.compile("sgd", "binary_crossentropy")
    done = keras.callbacks.LambdaCallback(
        on_train_end=lambda logs: print("rank", context.distributed.rank, "weights", repr(model.get_weights()[0].tolist()))
    )
    model.fit(x, y, batch_size=5, epochs=2, validation_data=(x, y), verbose=0, callbacks=[done])
"""


@pytest.mark.thorough
@pytest.mark.timeout(400)
@again
def test_two_workers_run_the_script_and_train_the_same_model(det):
    det.cwd.joinpath("two.py").write_text(textwrap.dedent(TWO))
    python(det, "two.py")
    said = [
        line.partition("] rank ")[2]
        for line in det("logs", "1").stdout.splitlines()
        if "weights" in line
    ]
    ranks, weights = zip(*(line.split(" ", 1) for line in said), strict=True)
    assert sorted(ranks) == ["0", "1"]
    assert len(set(weights)) == 1
    assert [m["batches"] for m in det.metrics(1, "training")] == [4, 8]


CLASS = """
    import numpy as np
    from det_driver.native import Categorical, create
    from det_keras import TFKerasTrial
    from det_keras.versions import keras

    class Native(TFKerasTrial):
        def build_model(self):
            model = self.context.wrap_model(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
            model.compile(keras.optimizers.SGD(self.context.get_hparam("lr")), "mse")
            return model

        def build_training_data_loader(self):
            x = np.linspace(-1, 1, 32, dtype="float32").reshape(-1, 1)
            return x, 2 * x

        build_validation_data_loader = build_training_data_loader

    searcher = {"name": "random", "metric": "val_loss", "max_trials": 2, "max_length": {"epochs": 2}}
    hparams = {"lr": Categorical([0.05, 0.1]), "global_batch_size": 8}
    create(Native, {"searcher": searcher, "hyperparameters": hparams}, context_dir=".")
    print("reached by", __name__)
"""


@pytest.mark.thorough
@pytest.mark.timeout(400)
@again
def test_a_search_over_a_trial_class_that_its_script_hands_over(det):
    det.cwd.joinpath("train.py").write_text(textwrap.dedent(CLASS))
    said = python(det, "train.py").stdout
    assert "experiment 1 is completed: best val_loss" in said
    logs = det("logs", "1").stdout
    assert logs.count("train.py has handed over Native") == 2
    assert "reached by" not in said + logs


@pytest.mark.thorough
@again
def test_a_script_that_trains_nothing_is_told_so(det):
    det.cwd.joinpath("none.py").write_text(
        "import det_keras\ndet_keras.init({'max_restarts': 0, 'searcher': {'name': 'single',"
        " 'metric': 'x'}}, context_dir='.')\n"
    )
    python(det, "none.py", status=1)
    assert (
        "the script ended and trained nothing; call fit() of the model that wrap_model() returned"
        in det("logs", "1").stdout
    )
