"""Who takes a ferry: a wide and deep classifier over feature columns, exported after validations.

Each part has an optimizer. An earlier model gives the initial weights: TensorFlow draws them by the
number of an op in its graph, which is another one in det's graph.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tests.contract.programs.suite import LENGTH, SEED, VALIDATED, Outcome

from det_estimator import EstimatorTrial
from det_estimator.build import graph_seed
from det_estimator.load import tensors

v1: Any = tf.compat.v1
column = tf.feature_column

BATCH, RECORDS = 8, 48
TWO_RANKS = (None, "each rank shuffles and normalizes its own part")
HARBOURS = ["north", "east", "south", "west"]


def passengers(count: int, seed: int) -> tuple[dict[str, Any], Any]:
    """Return where passengers start, when and how far they go, and who takes a ferry."""
    draw = np.random.default_rng(seed)
    harbour, hour = draw.choice(HARBOURS, count), draw.integers(0, 24, count)
    distance = draw.exponential(10, count).astype("float32")
    takes = (distance > 6) & (hour > 5) & (harbour != "north")
    return {"harbour": harbour, "hour": hour, "distance": distance}, takes.astype("int64")


SEEN, HELD_OUT = passengers(RECORDS, 1), passengers(20, 2)


def columns() -> tuple[list[Any], list[Any]]:
    """Return the columns of the wide part and of the deep one."""
    harbour = column.categorical_column_with_vocabulary_list("harbour", HARBOURS)
    hour = column.bucketized_column(column.numeric_column("hour"), [6, 12, 18])
    wide = [harbour, column.crossed_column(["harbour", hour], 16)]
    distance = column.numeric_column("distance", normalizer_fn=tf.math.log1p)
    deep = [column.embedding_column(harbour, 3), hour, distance]
    return wide, deep


def estimator(folder: str | None, wrap: Any, earlier: str | None) -> Any:
    wide, deep = columns()
    settings = earlier and tf.estimator.WarmStartSettings(earlier)
    return v1.estimator.DNNLinearCombinedClassifier(
        model_dir=folder,
        linear_feature_columns=wide,
        linear_optimizer=wrap(v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001)),
        dnn_feature_columns=deep,
        dnn_optimizer=wrap(v1.train.AdamOptimizer(0.02)),
        dnn_hidden_units=[8, 4],
        batch_norm=True,
        loss_reduction=v1.losses.Reduction.SUM_OVER_BATCH_SIZE,
        warm_start_from=settings,
        config=tf.estimator.RunConfig(tf_random_seed=graph_seed(SEED)),
    )


@functools.cache
def earlier_model() -> Any:
    """Train a model for a batch by TensorFlow alone, and return its temporary directory."""
    folder = tempfile.TemporaryDirectory()
    first = estimator(folder.name, lambda optimizer: optimizer, None)
    first.train(lambda: tf.data.Dataset.from_tensor_slices(HELD_OUT).batch(BATCH), steps=1)
    return folder


def batches(records: Any, size: int) -> Any:
    return records.shuffle(RECORDS, seed=5).batch(size, drop_remainder=True)


def receiver() -> Any:
    """Serve serialized `tf.Example`s."""
    wide, deep = columns()
    spec = column.make_parse_example_spec([*wide, *deep])
    return tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)()


def exporter() -> Any:
    return tf.estimator.LatestExporter("latest", receiver, exports_to_keep=1)


class Trial(EstimatorTrial):
    def build_estimator(self) -> Any:
        return estimator(None, self.context.wrap_optimizer, earlier_model().name)

    def build_train_spec(self) -> Any:
        size = self.context.get_per_slot_batch_size()
        return tf.estimator.TrainSpec(lambda: batches(self.records(SEEN), size), hooks=self.hooks())

    def build_validation_spec(self) -> Any:
        return tf.estimator.EvalSpec(
            lambda: self.records(HELD_OUT).batch(BATCH), steps=None, exporters=exporter()
        )

    def records(self, data: Any) -> Any:
        return self.context.wrap_dataset(tf.data.Dataset.from_tensor_slices(data))

    def hooks(self) -> list[Any]:
        return []


class Watch(v1.train.SessionRunHook):  # type: ignore[misc]
    """Reads the scalar summaries of each batch."""

    def __init__(self) -> None:
        self.found: list[dict[str, float]] = []

    def begin(self) -> None:
        self._summaries = v1.summary.merge_all()

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(self._summaries)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        summary = v1.Summary.FromString(run_values.results)
        self.found.append(
            {each.tag: each.simple_value for each in summary.value if each.HasField("simple_value")}
        )


def plain() -> Outcome:
    """Train from the beginning to each validation: the estimator's training restarts its data."""
    validation: dict[int, dict[str, float]] = {}
    for length in (*range(VALIDATED, LENGTH, VALIDATED), LENGTH):
        with tempfile.TemporaryDirectory() as folder:
            training, validation[length], weights = train(Path(folder), length)
            answers = served(Path(folder))
    return Outcome(training, validation, {**weights, "served": answers})


def train(
    folder: Path, length: int
) -> tuple[list[dict[str, float]], dict[str, float], dict[str, Any]]:
    """Train, evaluate and export; return the reports of batches, the metrics, and the weights."""
    watch, records = Watch(), tf.data.Dataset.from_tensor_slices
    alone = estimator(str(folder), lambda optimizer: optimizer, earlier_model().name)
    alone.train(lambda: batches(records(SEEN), BATCH).repeat(), steps=length, hooks=[watch])
    metrics = alone.evaluate(lambda: records(HELD_OUT).batch(BATCH))
    exporter().export(
        alone, str(folder / "export" / "latest"), alone.latest_checkpoint(), metrics, True
    )
    numbers = {name: float(value) for name, value in metrics.items() if name != "global_step"}
    return watch.found, numbers, tensors(folder)


def served(path: Path) -> Any:
    """Return what the newest export in a directory says of the held-out passengers."""
    [newest] = (path / "export" / "latest").iterdir()
    features, _ = HELD_OUT
    kinds = {"harbour": "bytes_list", "hour": "float_list", "distance": "float_list"}
    examples = []
    for number in range(len(HELD_OUT[1])):
        example = tf.train.Example()
        for name, kind in kinds.items():
            value = features[name][number]
            getattr(example.features.feature[name], kind).value.append(
                str(value).encode() if name == "harbour" else value
            )
        examples.append(example.SerializeToString())
    model = tf.saved_model.load(str(newest))
    return model.signatures["predict"](tf.constant(examples))["probabilities"].numpy()
