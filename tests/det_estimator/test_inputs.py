"""Datasets: wrapped, repeated, resumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import tensorflow as tf
from tests.det_estimator.trials import Line, with_

from det_core import At, Every, Schedule, TrialError


def data_of(lab: Any, trial: type) -> str:
    with pytest.raises(TrialError) as error:
        lab(trial, 1)
    return str(error.value)


WAY_OUT = "pass each dataset through context.wrap_dataset(dataset) right after creating it"
FORGOTTEN = f"returned a dataset that is not wrapped; {WAY_OUT}"


def test_a_dataset_that_is_not_wrapped_is_named(lab: Any) -> None:
    bare = lambda self: tf.data.Dataset.from_tensor_slices([1.0, 2.0]).batch(2)  # noqa: E731
    assert data_of(lab, with_(training_data=bare)) == f"TrainSpec.input_fn {FORGOTTEN}"
    assert data_of(lab, with_(validation_data=bare)) == f"EvalSpec.input_fn {FORGOTTEN}"


def test_what_is_no_dataset_is_named(lab: Any) -> None:
    tensors = lambda self: (tf.constant([1.0]), tf.constant([1.0]))  # noqa: E731
    assert (
        data_of(lab, with_(training_data=tensors))
        == "TrainSpec.input_fn returned tuple; return a tf.data.Dataset of batches"
    )


def test_wrapping_something_else_is_named(lab: Any) -> None:
    def wrapped(self: Any) -> Any:
        return self.context.wrap_dataset([1.0])

    assert (
        data_of(lab, with_(training_data=wrapped))
        == "wrap_dataset got list; give a tf.data.Dataset"
    )


def test_an_empty_dataset_is_named(lab: Any) -> None:
    empty = lambda self: self.records().take(0).batch(2)  # noqa: E731
    assert data_of(lab, with_(training_data=empty)).startswith(
        "the dataset of TrainSpec.input_fn is empty; give one"
    )


def test_a_dataset_that_turns_out_empty_is_named(lab: Any) -> None:
    """One that does not know its length."""
    empty = lambda self: self.records().filter(lambda x: x < 0).batch(2)  # noqa: E731
    assert data_of(lab, with_(training_data=empty)).startswith(
        "training ended by itself at batch 0, by OutOfRangeError"
    )


def test_a_batch_is_features_or_features_and_labels(lab: Any) -> None:
    three = lambda self: tf.data.Dataset.zip((self.records(),) * 3).batch(2)  # noqa: E731
    assert (
        data_of(lab, with_(training_data=three))
        == "the dataset of TrainSpec.input_fn gives 3 values a batch; give (features, labels)"
    )


@dataclass
class OfTwo:
    """The second of two ranks."""

    rank: int = 1
    size: int = 2


def test_a_dataset_is_sharded_once_however_often_it_is_wrapped(lab: Any) -> None:
    from dataclasses import replace

    from det_estimator import EstimatorTrialContext

    context = EstimatorTrialContext(replace(lab.info(), distributed=OfTwo()))
    once = context.wrap_dataset(tf.data.Dataset.range(8))
    assert context.wrap_dataset(once) is once
    derived = once.shuffle(8).batch(2)
    assert context.wrap_dataset(derived) is derived
    assert list(once.as_numpy_iterator()) == [1, 3, 5, 7]
    whole = context.wrap_dataset(tf.data.Dataset.range(3), shard_dataset=False)
    assert list(whole.as_numpy_iterator()) == [0, 1, 2]


def test_the_dataset_is_repeated_and_knows_its_epoch(lab: Any) -> None:
    with lab.adapter(Line) as adapter:
        assert (adapter.batches_per_epoch, adapter.global_batch_size) == (4, 2)
    losses = lab(with_(rate=0.0), 9).losses
    assert losses[1] == losses[5] == losses[9] == 2.5


def test_a_dataset_without_a_length_has_no_epochs(lab: Any) -> None:
    for make in (lambda d: d.filter(lambda x: x > 0), lambda d: d.repeat()):
        trial = with_(training_data=lambda self, make=make: make(self.records()).batch(2))
        with lab.adapter(trial) as adapter:
            assert adapter.batches_per_epoch is None
        assert list(lab(trial, 5).training) == [1, 2, 3, 4, 5]


def test_input_fn_gets_what_it_asks_for(lab: Any) -> None:
    seen: list[Any] = []

    class Trial(Line):
        def training_data(self, mode: Any, config: Any) -> Any:  # type: ignore[override]
            seen.append((mode, bool(config.model_dir)))
            return self.records().batch(2)

        def validation_data(self, params: Any) -> Any:  # type: ignore[override]
            seen.append(params)
            return self.records().batch(2)

    lab(Trial, 1)
    assert seen == [("train", True), {}]


PIPELINES: dict[str, Any] = {
    "shuffled": lambda d: d.shuffle(8).batch(2),
    "shuffled the same way each time": (
        lambda d: d.shuffle(8, reshuffle_each_iteration=False).batch(2)
    ),
    "shuffled and repeated": lambda d: d.shuffle(5).repeat(3).batch(2),
    "augmented": lambda d: d.map(lambda x: x + tf.random.uniform([])).batch(2),
    "interleaved": (
        lambda d: d.interleave(
            lambda x: tf.data.Dataset.from_tensors(x).repeat(2), cycle_length=3
        ).batch(3)
    ),
    "cached and prefetched": lambda d: d.cache().shuffle(8).batch(3).prefetch(2),
    "mapped in parallel": lambda d: (
        d.shuffle(8).map(lambda x: x * 2, num_parallel_calls=2).batch(2)
    ),
    "filtered": lambda d: d.shuffle(8).filter(lambda x: x > 2).batch(2),
}


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", list(PIPELINES))
@pytest.mark.filterwarnings("ignore:Seed")
def test_a_run_resumes_at_its_place_in_the_data(lab: Any, pipeline: str) -> None:
    trial = with_(training_data=lambda self: PIPELINES[pipeline](self.records()))
    schedule = Schedule(report=Every(1), checkpoint=At({6}), policy="none")
    whole = lab(trial, 11, schedule=schedule)
    again = lab(trial, 11, schedule=schedule, checkpoint=whole.checkpoints[6])
    assert again.losses == {n: loss for n, loss in whole.losses.items() if n > 6}
    assert len(set(whole.losses.values())) > 4
