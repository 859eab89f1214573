"""det's Keras on two ranks over Horovod against a plain `model.fit` under `horovodrun`.

The figure is a ratio of step times.

The plain script's optimizer averages its gradients in one grouped allreduce, as one writes it by
hand, since Horovod's own integration exchanges nothing under Keras 3; under Keras 2 it is Horovod's
`DistributedOptimizer`. A network of 1 M parameters, 64 records to a rank; both report every 100
steps, and both have one callback. How the pairs are run: `pairs.py`.

    python benchmarks/keras_distributed.py [--pairs 10] [--steps 500]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from pairs import WARM_UP, Clock, compare

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
BATCH, EPOCH, PERIOD, WIDTH = 64, 50, 100, 256
CONFIG = f"""
name: keras-distributed
entrypoint: keras_distributed:Trial
hyperparameters: {{global_batch_size: {2 * BATCH}}}
searcher: {{name: single, metric: val_loss, max_length: {{batches: LENGTH}}}}
resources: {{slots_per_trial: 2}}
distributed: {{backend: horovod}}
scheduling_unit: {PERIOD}
checkpoint_policy: none
reproducibility: {{experiment_seed: 1}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        plain_script()
        return
    horovodrun = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"]
    commands = {
        "det": [sys.executable, "-m", "det_driver.cli", "run", "config.yaml", "."],
        "plain": [*horovodrun, sys.executable, Path(__file__).name, "--child"],
    }
    compare(
        "horovod", commands, CONFIG, script=__file__, pairs=arguments.pairs, steps=arguments.steps
    )


def make_model(optimizer: Any) -> Any:
    from tensorflow import keras

    hidden = [keras.layers.Dense(width, activation="relu") for width in (768, 768, 256)]
    model = keras.Sequential([keras.Input((WIDTH,)), *hidden, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    return model


def make_data() -> Any:
    """Return the data of one rank: the same on each, as what it holds takes no time."""
    import numpy as np
    import tensorflow as tf

    inputs = np.random.default_rng(0).normal(size=(BATCH * EPOCH, WIDTH)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((inputs, inputs[:, :10].argmax(axis=1)))


def timer(rank: int) -> Any:
    """Return a callback that counts batches."""
    from tensorflow import keras

    class Timer(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.clock, self.done = Clock(rank), 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.done += 1
            self.clock.tick(self.done)

    return Timer()


def plain_script() -> None:
    import horovod.tensorflow.keras as hvd
    from tensorflow import keras

    hvd.init()
    keras.utils.set_random_seed(1)  # so that the ranks begin with the same weights

    class Averaged(keras.optimizers.SGD):
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            from horovod.tensorflow import grouped_allreduce

            return super().apply(grouped_allreduce(list(grads)), trainable_variables)

    keras_3 = hasattr(keras.optimizers.SGD, "apply")
    model = make_model(
        Averaged(0.01) if keras_3 else hvd.DistributedOptimizer(keras.optimizers.SGD(0.01))
    )
    steps = int(os.environ["BENCHMARK_STEPS"]) + WARM_UP
    data = make_data().batch(BATCH, drop_remainder=True).repeat()
    model.fit(
        data,
        epochs=-(-steps // PERIOD),
        steps_per_epoch=PERIOD,
        verbose=0,
        callbacks=[timer(hvd.rank())],
    )


if __name__ == "__main__":
    main()
else:  # det imports the trial
    from det_keras import TFKerasTrial

    class Trial(TFKerasTrial):
        """The same as a trial."""

        def build_model(self) -> Any:
            from tensorflow import keras

            return self.context.wrap_model(make_model(keras.optimizers.SGD(0.01)))

        def build_training_data_loader(self) -> Any:
            return self.context.wrap_dataset(make_data(), shard_dataset=False).batch(
                BATCH, drop_remainder=True
            )

        def build_validation_data_loader(self) -> Any:
            return self.context.wrap_dataset(make_data(), shard_dataset=False).batch(BATCH).take(1)

        def keras_callbacks(self) -> list[Any]:
            return [timer(self.context.distributed.rank)]
