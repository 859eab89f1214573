"""A script that is its own experiment.

`python train.py` trains here, `python train.py cluster` searches with workers.
"""

from __future__ import annotations

import sys

import tensorflow as tf
from sklearn.datasets import load_iris

import det_estimator
from det_driver.native import Constant, Integer, Log, Mode

NAMES = ("sepal_length", "sepal_width", "petal_length", "petal_width")

context = det_estimator.init(
    config={
        "name": "native_estimator",
        "hyperparameters": {
            "global_batch_size": Constant(30),
            "hidden": Integer(4, 64),
            "lr": Log(-3, 0),
        },
        "searcher": {
            "name": "adaptive_asha",
            "metric": "accuracy",
            "smaller_is_better": False,
            "max_trials": 4,
            "max_length": {"epochs": 16},
        },
        "reproducibility": {"experiment_seed": 1},
    },
    mode=Mode.CLUSTER if "cluster" in sys.argv else Mode.LOCAL,
    context_dir=".",
)


def irises(validation):
    measures, labels = load_iris(return_X_y=True)
    chosen = [i for i in range(len(labels)) if (i % 5 == 0) == validation]
    columns = {name: measures[chosen, i].astype("float32") for i, name in enumerate(NAMES)}
    return context.wrap_dataset(
        tf.data.Dataset.from_tensor_slices((columns, labels[chosen].astype("int64")))
    )


estimator = tf.compat.v1.estimator.DNNClassifier(
    hidden_units=[context.get_hparam("hidden")],
    feature_columns=[tf.feature_column.numeric_column(name) for name in NAMES],
    n_classes=3,
    optimizer=context.wrap_optimizer(tf.compat.v1.train.AdagradOptimizer(context.get_hparam("lr"))),
)
metrics, _ = tf.estimator.train_and_evaluate(
    estimator,
    tf.estimator.TrainSpec(
        lambda: irises(False).shuffle(120).batch(context.get_per_slot_batch_size())
    ),
    tf.estimator.EvalSpec(lambda: irises(True).batch(30), steps=None),
)
print(
    f"accuracy {metrics['accuracy']:.2f}"
)  # in Mode.LOCAL only: a worker's script ends with its training
