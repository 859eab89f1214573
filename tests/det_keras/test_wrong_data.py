"""Data that is not what it should be: one line each, that says what, where, and the way out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from det_core import TrialError
from det_keras import SequenceAdapter
from det_keras.adapter import KerasAdapter
from det_keras.testing import OneVarTrial
from det_keras.versions import keras

X = np.ones((8, 1), dtype="float32")


class Items(keras.utils.Sequence):
    """A sequence of given items; past the last it gives the last."""

    def __init__(self, *items: Any, length: Any = 4) -> None:
        super().__init__()
        self.items, self.length = items, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.items[min(index, len(self.items) - 1)]


class Unsized(keras.utils.Sequence):
    def __getitem__(self, index: int) -> Any:
        return X, X


def records(*parts: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0])


class Plain(OneVarTrial):
    """With a model whose step is Keras's own, which takes two or three parts."""

    def build_model(self) -> Any:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return self.context.wrap_model(model)


PAIR = (X[:2], X[:2])
WRONG = {
    "arrays of different lengths": (lambda c: (X, X[:5]), r"differ in length: x 8, y 5 records"),
    "weights of another length": (
        lambda c: (X, X, np.ones(3)),
        r"x 8.*sample_weights 3 records|y 8, sample_weights 3",
    ),
    "an input of another length": (lambda c: ([X, X[:3]], X), r"differ in length"),
    "fewer records than a batch": (
        lambda c: (X[:1], X[:1]),
        r"1 records, fewer than the 2 of one batch",
    ),
    "a tuple of one": (lambda c: (X,), r"a tuple of 1; return \(x, y\)"),
    "a tuple of four": (lambda c: (X, X, X, X), r"a tuple of 4; return \(x, y\)"),
    "no array": (
        lambda c: (X, object()),
        r"y of build_training_data_loader is object, which is no array",
    ),
    "a number": (lambda c: (X, 3), r"y of build_training_data_loader is 3; give an array"),
    "ragged lists": (
        lambda c: ([[1.0], [1.0, 2.0]], X),
        r"x of build_training_data_loader is list, which is no array",
    ),
    "a dataset that is not wrapped": (
        lambda c: records(X, X).batch(2),
        r"is not wrapped; pass it through context.wrap_dataset",
    ),
    "a dataset of single records": (
        lambda c: c.wrap_dataset(records(X[:, 0], X)),
        r"of single records; call .batch",
    ),
    "a dataset of single tensors": (
        lambda c: c.wrap_dataset(records(X)).batch(2),
        r"of single tensors; let its elements be",
    ),
    "a dataset of tuples of four": (
        lambda c: c.wrap_dataset(records(X, X, X, X)).batch(2),
        r"of tuples of 4",
    ),
    "an empty dataset": (
        lambda c: c.wrap_dataset(records(X, X)).take(0).batch(2),
        r"an empty tf.data.Dataset",
    ),
    "a sequence of 4-tuples": (
        lambda c: Items((X, X, X, X)),
        r"an item that is a tuple of 4; let its items be",
    ),
    "a sequence with None before weights": (
        lambda c: Items((X, None, X)),
        r"an item with None before another part; only parts at its end may be None",
    ),
    "a sequence of arrays": (lambda c: Items(X), r"an item that is ndarray; let its items be"),
    "a sequence of numbers": (
        lambda c: Items((1.0, 2.0)),
        r"returned hold numbers, or arrays of different axes",
    ),
    "a sequence without a length": (
        lambda c: Unsized(),
        r"a sequence without a length; define __len__",
    ),
    "an empty sequence": (lambda c: Items(PAIR, length=0), r"a sequence of 0 batches"),
    "an adapter of no sequence": (
        lambda c: SequenceAdapter(3),
        r"SequenceAdapter got int; give a keras.utils.Sequence",
    ),
    "an adapter of no workers": (
        lambda c: SequenceAdapter(Items(PAIR), workers=-1),
        r"workers=-1; give a whole number",
    ),
    "a generator": (
        lambda c: (PAIR for _ in range(3)),
        r"returned generator; return a tuple \(x, y\)",
    ),
    "nothing": (lambda c: None, r"build_training_data_loader returned NoneType; return a tuple"),
    "a cache of an endless dataset": (
        lambda c: c.experimental.cache_train_dataset("e", "1", directory=c.run.tensorboard_dir)(
            lambda: records(X, X).repeat()
        )(),
        r"'e' has no end and cannot be cached; leave out .repeat",
    ),
    "a cache of no dataset": (
        lambda c: c.experimental.cache_train_dataset("n", "1", directory=c.run.tensorboard_dir)(
            lambda: 3
        )(),
        r"'n' returned int; return a tf.data.Dataset",
    ),
    "a cache with a strange name": (
        lambda c: c.experimental.cache_train_dataset("../e", "1", directory=c.run.tensorboard_dir)(
            lambda: records(X, X)
        )(),
        r"dataset_id is '../e'; give letters",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_data_is_one_line_that_says_what_to_do(name: str, info: Any) -> None:
    data, message = WRONG[name]

    class Wrong(Plain):
        def build_training_data_loader(self) -> Any:
            return data(self.context)

    with pytest.raises(TrialError, match=message) as raised:
        KerasAdapter.create(Wrong, info())
    assert "\n" not in str(raised.value)


def test_an_item_that_turns_out_wrong_in_training_is_named(runs: Any) -> None:
    class Late(Plain):
        def data(self, x: Any) -> Any:
            return Items(PAIR, PAIR, (X, X, X, X))

    with pytest.raises(TrialError, match="an item that is a tuple of 4"):
        runs(Late)(12)


def test_what_a_sequence_raises_is_what_the_trial_raises(runs: Any) -> None:
    class Broken(Items):
        def __getitem__(self, index: int) -> Any:
            if index > 1:
                raise ZeroDivisionError("the third item")
            return PAIR

    class Trial(OneVarTrial):
        def data(self, x: Any) -> Any:
            return Broken()

    with pytest.raises(ZeroDivisionError, match="the third item"):
        runs(Trial)(12)


def test_arrays_need_a_batch_size(info: Any) -> None:
    with pytest.raises(TrialError, match="set the hyperparameter global_batch_size"):
        KerasAdapter.create(OneVarTrial, info(hparams={}))


def test_endless_validation_data_is_refused_unless_bounded(info: Any) -> None:
    class Endless(OneVarTrial):
        def build_validation_data_loader(self) -> Any:
            return self.context.wrap_dataset(records(X, X)).repeat().batch(2)

    with pytest.raises(TrialError, match=r"without an end; give context.configure_fit"):
        KerasAdapter.create(Endless, info())

    class Bounded(Endless):
        def build_validation_data_loader(self) -> Any:
            self.context.configure_fit(validation_steps=2)
            return super().build_validation_data_loader()

    KerasAdapter.create(Bounded, info()).close()


def test_a_cache_of_other_records_is_refused(info: Any, tmp_path: Any) -> None:
    class Cached(OneVarTrial):
        kind = "float32"

        def data(self, x: Any) -> Any:
            make = self.context.experimental.cache_train_dataset("d", "1", directory=tmp_path)
            return make(lambda: records(X.astype(self.kind), X))().batch(2)

    class Other(Cached):
        kind = "int32"

    KerasAdapter.create(Cached, info()).close()
    with pytest.raises(TrialError, match="the cache of 'd', version '1', holds other records"):
        KerasAdapter.create(Other, info())
