"""Irises by a premade estimator: a deep classifier over numeric columns."""

from __future__ import annotations

import tensorflow as tf
from sklearn.datasets import load_iris

from det_estimator import EstimatorTrial

NAMES = ("sepal_length", "sepal_width", "petal_length", "petal_width")


def irises(validation: bool):
    """Return the measures by name, and the labels of one of the two parts."""
    measures, labels = load_iris(return_X_y=True)
    chosen = [i for i in range(len(labels)) if (i % 5 == 0) == validation]
    columns = {name: measures[chosen, i].astype("float32") for i, name in enumerate(NAMES)}
    return columns, labels[chosen].astype("int64")


class IrisTrial(EstimatorTrial):
    def build_estimator(self):
        units, layers = self.context.get_hparam("hidden"), self.context.get_hparam("layers")
        optimizer = tf.compat.v1.train.AdagradOptimizer(self.context.get_hparam("lr"))
        return tf.compat.v1.estimator.DNNClassifier(
            hidden_units=[units] * layers,
            feature_columns=[tf.feature_column.numeric_column(name) for name in NAMES],
            n_classes=3,
            optimizer=self.context.wrap_optimizer(optimizer),
            dropout=self.context.get_hparam("dropout"),
        )

    def build_train_spec(self):
        return tf.estimator.TrainSpec(self.training_data)

    def build_validation_spec(self):
        best = tf.estimator.BestExporter(
            serving_input_receiver_fn=self.serving_input, exports_to_keep=1
        )
        return tf.estimator.EvalSpec(self.validation_data, steps=None, exporters=best)

    def build_serving_input_receiver_fns(self):
        return {"irises": self.serving_input}

    def serving_input(self):
        measures = {name: tf.compat.v1.placeholder(tf.float32, [None], name) for name in NAMES}
        return tf.estimator.export.ServingInputReceiver(measures, measures)

    def training_data(self):
        data = self.context.wrap_dataset(
            tf.data.Dataset.from_tensor_slices(irises(validation=False))
        )
        return data.shuffle(120).batch(self.context.get_per_slot_batch_size())

    def validation_data(self):
        return self.context.wrap_dataset(
            tf.data.Dataset.from_tensor_slices(irises(validation=True))
        ).batch(30)
