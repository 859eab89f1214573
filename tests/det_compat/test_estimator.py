"""Estimator code as Determined's users wrote it, run unmodified."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tensorflow_estimator")
pytest.importorskip("sklearn")

MODEL = """
    import tensorflow as tf
    from sklearn.datasets import load_digits

    from determined.estimator import EstimatorTrial, EstimatorTrialContext, RunHook


    class Says(RunHook):
        def on_checkpoint_end(self, checkpoint_dir: str) -> None:
            print("checkpoint in a directory", flush=True)

        def on_trial_close(self) -> None:
            print("the trial is over", flush=True)


    def digits(train):
        images, labels = load_digits(return_X_y=True)
        part = slice(0, 1200) if train else slice(1200, None)
        return {"image": (images[part] / 16).astype("float32")}, labels[part].astype("int32")


    class DigitsTrial(EstimatorTrial):
        def __init__(self, context: EstimatorTrialContext) -> None:
            self.context = context

        def build_estimator(self) -> tf.estimator.Estimator:
            optimizer = tf.compat.v1.train.AdamOptimizer(learning_rate=self.context.get_hparam("learning_rate"))
            optimizer = self.context.wrap_optimizer(optimizer)
            return tf.compat.v1.estimator.DNNClassifier(
                feature_columns=[tf.feature_column.numeric_column("image", shape=(64,))],
                n_classes=10,
                hidden_units=[self.context.get_hparam("hidden")],
                optimizer=optimizer,
            )

        def _input_fn(self, train):
            def input_fn():
                ds = tf.data.Dataset.from_tensor_slices(digits(train))
                ds = self.context.wrap_dataset(ds)
                return ds.batch(self.context.get_per_slot_batch_size())

            return input_fn

        def build_train_spec(self) -> tf.estimator.TrainSpec:
            return tf.estimator.TrainSpec(self._input_fn(True), hooks=[Says()])

        def build_validation_spec(self) -> tf.estimator.EvalSpec:
            return tf.estimator.EvalSpec(self._input_fn(False), steps=None)
"""
CONFIG = """
    name: estimator
    entrypoint: model_def:DigitsTrial
    hyperparameters: {learning_rate: 0.005, hidden: 32, global_batch_size: 32}
    searcher: {name: single, metric: accuracy, smaller_is_better: false, max_length: {batches: 120}}
    min_validation_period: {batches: 60}
    max_restarts: 0
"""


def test_a_trial_with_a_premade_estimator_and_a_hook(det: Any, write: Any) -> None:
    write(const__yaml=CONFIG, model_def__py=MODEL)
    det("e", "create", "const.yaml", ".", "-f")
    validations = det.metrics(1, "validation")
    assert [row["batches"] for row in validations] == [60, 120]
    assert validations[-1]["accuracy"] > 0.7
    logs = det("e", "logs", "1").stdout
    assert "checkpoint in a directory" in logs
    assert "the trial is over" in logs


def test_a_master_of_old_is_taken_by_init() -> None:
    from determined.estimator import EstimatorNativeContext
    from determined.experimental import Mode
    from determined.experimental.estimator import init

    config = {"searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}}}
    assert isinstance(
        init(config, Mode.LOCAL, ".", None, "http://master:8080"), EstimatorNativeContext
    )


def test_all_names_of_the_estimator_api_are_there() -> None:
    from determined import estimator

    names = [name for name in dir(estimator) if not name.startswith("_")]
    assert [name for name in names if getattr(estimator, name, None) is None] == []
