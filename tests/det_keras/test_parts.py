"""Optimizers are saved and restored on several ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from det_keras.optim import Reduction, adapt_optimizer, waiting_of
from det_keras.parts import optimizer_state, restore_optimizer
from det_keras.versions import keras

OF_RANKS = [
    [np.int64(1), np.float32([[0.1], [3.0]])],
    [np.int64(1), np.float32([[0.7], [-1.0]])],
]


def optimizer() -> tuple[Any, list[Any]]:
    """Return an optimizer that steps after every second batch, and its weights."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    made = adapt_optimizer(keras.optimizers.SGD(0.1), Reduction(frequency=2))
    made.build(model.trainable_variables)
    waiting_of(made).build(model.trainable_variables)
    return made, model.trainable_variables


def rank(number: int, size: int = 2) -> Any:
    return SimpleNamespace(rank=number, size=size, allgather=lambda value: OF_RANKS)


@pytest.mark.parametrize("number", [0, 1])
def test_gradients_that_wait_are_those_of_each_rank(number: int) -> None:
    """Bit for bit. The sum of a mean and another batch is rounded in another way."""
    saved = optimizer_state(*optimizer(), rank(0))
    restored, _ = optimizer()
    restore_optimizer(restored, saved, rank(number))
    found = [variable.numpy().tolist() for variable in waiting_of(restored).variables]
    assert found == [each.tolist() for each in OF_RANKS[number]]


def test_other_numbers_of_ranks_get_the_mean_gradient() -> None:
    saved = optimizer_state(*optimizer(), rank(0))
    restored, _ = optimizer()
    restore_optimizer(restored, saved, rank(2, 3))
    mean = waiting_of(restored).variables[1].numpy()
    assert mean.ravel().tolist() == pytest.approx([0.4, 1.0])
