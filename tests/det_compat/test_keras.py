"""Keras code as Determined's users wrote it, run unmodified."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("sklearn")

DATA = """
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    def arrays(train):
        images, labels = load_digits(return_X_y=True)
        part = slice(0, 1200) if train else slice(1200, None)
        return (images[part] / 16).astype("float32"), labels[part].astype("int32")
"""
SEQUENCE = """
    import numpy as np
    import tensorflow as tf
    from data import arrays
    from determined.keras import InputData, SequenceAdapter, TFKerasExperimentalContext, TFKerasTrial, TFKerasTrialContext


    class Batches(tf.keras.utils.Sequence):
        def __init__(self, x, y, batch_size):
            super().__init__()
            self.x, self.y, self.batch_size = x, y, batch_size

        def __len__(self):
            return int(np.ceil(len(self.x) / self.batch_size))

        def __getitem__(self, index):
            part = slice(index * self.batch_size, (index + 1) * self.batch_size)
            return self.x[part], self.y[part]


    class SequenceTrial(TFKerasTrial):
        def __init__(self, context: TFKerasTrialContext) -> None:
            self.context = context
            self.experimental: TFKerasExperimentalContext = context.experimental
            assert isinstance(self.experimental, TFKerasExperimentalContext)

        def build_model(self) -> tf.keras.models.Model:
            model = tf.keras.Sequential(
                [
                    tf.keras.layers.Dense(self.context.get_hparam("dense1"), activation="relu", input_shape=(64,)),
                    tf.keras.layers.Dense(10),
                ]
            )
            model = self.context.wrap_model(model)
            optimizer = self.context.wrap_optimizer(tf.keras.optimizers.SGD(0.1, momentum=0.9))
            model.compile(
                optimizer=optimizer,
                loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
            )
            return model

        def build_training_data_loader(self) -> InputData:
            return SequenceAdapter(Batches(*arrays(train=True), self.context.get_per_slot_batch_size()), workers=1)

        def build_validation_data_loader(self) -> InputData:
            return Batches(*arrays(train=False), self.context.get_per_slot_batch_size())
"""
TF_DATA = """
    import tensorflow as tf
    from data import arrays
    from model_def import SequenceTrial


    class DatasetTrial(SequenceTrial):
        def build_training_data_loader(self):
            ds = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(arrays(train=True)))
            return ds.shuffle(1200, seed=1).batch(self.context.get_per_slot_batch_size(), drop_remainder=True)

        def build_validation_data_loader(self):
            ds = self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(arrays(train=False)))
            return ds.batch(self.context.get_per_slot_batch_size())

        def keras_callbacks(self):
            from determined.keras import TFKerasTensorBoard
            from determined.keras.callbacks import EarlyStopping

            return [EarlyStopping(monitor="val_loss", patience=50), TFKerasTensorBoard(update_freq="epoch")]
"""
CONFIG = """
    name: keras
    entrypoint: model_def:SequenceTrial
    hyperparameters: {dense1: 32, global_batch_size: 32}
    records_per_epoch: 1200
    searcher: {name: single, metric: val_accuracy, smaller_is_better: false, max_length: {epochs: 3}}
    min_validation_period: {batches: 30}
    max_restarts: 0
"""
IRIS = """
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_iris

    import determined as det
    from determined import core
    from determined.keras import DeterminedCallback, TensorBoard


    def main(core_context, strategy, checkpoint, continue_id, hparams, epochs):
        x, y = load_iris(return_X_y=True)
        order = np.random.RandomState(0).permutation(len(x))
        x, y = x[order].astype("float32"), tf.keras.utils.to_categorical(y[order], 3)
        with strategy.scope():
            model = tf.keras.Sequential(
                [
                    tf.keras.layers.Dense(hparams["layer1_dense_size"], activation="relu", input_shape=(4,)),
                    tf.keras.layers.Dense(3, activation="softmax"),
                ]
            )
            model.compile(
                tf.keras.optimizers.RMSprop(learning_rate=hparams["learning_rate"]),
                tf.keras.losses.categorical_crossentropy,
                metrics=[tf.keras.metrics.categorical_accuracy],
            )
        det_cb = DeterminedCallback(core_context, checkpoint=checkpoint, continue_id=continue_id, checkpoint_epochs=2)
        tb_cb = TensorBoard(core_context, update_freq="epoch", profile_batch=0)
        model.fit(
            x[:120], y[:120], batch_size=hparams["global_batch_size"], epochs=epochs, verbose=2,
            validation_data=(x[120:], y[120:]), callbacks=[det_cb, tb_cb],
        )


    if __name__ == "__main__":
        info = det.get_cluster_info()
        assert info is not None, "this test only runs on-cluster"
        distributed, strategy = core.DistributedContext.from_tf_config()
        with core.init(distributed=distributed) as core_context:
            main(core_context, strategy, info.latest_checkpoint, info.trial.trial_id, info.trial.hparams, epochs=6)
"""
NATIVE = """
    import argparse

    import tensorflow as tf
    from data import arrays

    from determined import experimental
    from determined.experimental.keras import init
    from determined.keras import TFKerasNativeContext

    parser = argparse.ArgumentParser()
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--test", action="store_true")
    args = parser.parse_args()
    config = {"hyperparameters": {"global_batch_size": 32}, "searcher": {"name": "single", "metric": "val_loss", "max_length": 30}}
    context = init(config, local=args.local, test=args.test, context_dir=".", master_url="http://master:8080")
    assert isinstance(context, TFKerasNativeContext) and isinstance(context, experimental.NativeContext)
    model = tf.keras.Sequential([tf.keras.layers.Dense(10, input_shape=(64,))])
    model = context.wrap_model(model)
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(*arrays(train=True), epochs=2, verbose=0)
    print("losses", len(history.history["loss"]))
"""
IRIS_CONFIG = """
    name: iris
    entrypoint: python3 -m determined.launch.tensorflow -- python3 train.py
    hyperparameters: {learning_rate: 0.01, layer1_dense_size: 16, global_batch_size: 16}
    searcher: {name: single, metric: val_loss, smaller_is_better: true}
    max_restarts: 0
"""


@pytest.mark.parametrize("trial", ["model_def:SequenceTrial", "dataset:DatasetTrial"])
def test_a_trial_on_a_sequence_and_on_a_dataset(det: Any, write: Any, trial: str) -> None:
    write(
        const__yaml=CONFIG.replace("model_def:SequenceTrial", trial),
        model_def__py=SEQUENCE,
        dataset__py=TF_DATA,
        data__py=DATA,
    )
    det("e", "create", "const.yaml", ".", "-f")
    validations = det.metrics(1, "validation")
    assert validations[-1]["val_accuracy"] > 0.7


def test_the_iris_script_with_the_callback(det: Any, write: Any) -> None:
    write(const__yaml=IRIS_CONFIG, train__py=IRIS)
    det("e", "create", "const.yaml", ".", "-f")
    assert len(det.metrics(1, "validation")) == 6
    assert [c["batches"] for c in det.json("checkpoint", "list", "1")]


@pytest.mark.thorough
def test_a_native_script_with_flags_and_a_master_trains_here(det: Any, write: Any) -> None:
    write(train__py=NATIVE, data__py=DATA)

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "train.py", *flags]
        return subprocess.run(
            argv,
            cwd=det.cwd,
            env=det.env(None),
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    done = run("--local")
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["losses 2"]), done.stderr
    assert (
        "test=True is for trial classes; let the script train a little itself"
        in run("--local", "--test").stderr
    )


def test_all_names_of_the_keras_api_are_there() -> None:
    from determined import keras
    from determined.keras import callbacks

    for module in (keras, callbacks):
        names = [name for name in dir(module) if not name.startswith("_")]
        assert [name for name in names if getattr(module, name, None) is None] == []
