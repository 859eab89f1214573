"""What is random beside the data: Python's, NumPy's and TensorFlow's global generators, and those of the model's layers."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import Communicator

from .versions import KERAS_3, keras

_APART = 7_919  # a prime, so that the generators of ranks do not follow one another


def seed_everything(seed: int) -> None:
    """Seed all global generators, and let what Keras draws at random be part of a checkpoint."""
    if not KERAS_3:
        # Otherwise dropout draws from the state of its kernels, which nothing can save.
        keras.backend.experimental.enable_tf_random_generator()
    keras.utils.set_random_seed(seed)
    tf.random.set_global_generator(tf.random.Generator.from_seed(seed))


class Generators:
    """The generators that training draws from. Ranks draw alike from Python's and NumPy's, and each on its own from Keras's."""

    def __init__(self, model: Any, distributed: Communicator) -> None:
        self._model, self._distributed = model, distributed

    def part(self) -> None:
        """Let this rank draw other numbers than those that were seeded alike."""
        rank = self._distributed.rank
        if rank:
            for variable in self._variables():
                state = variable.numpy().copy()
                state.flat[0] += np.asarray(rank * _APART).astype(state.dtype)
                variable.assign(state)

    def together(self) -> dict[str, Any]:
        """Return the states of all ranks; every rank must ask."""
        mine = self.state()
        ranks = self._distributed.allgather(mine["variables"]) if self._distributed.size > 1 else [mine["variables"]]
        return {**mine, "variables": ranks}

    def take_up(self, state: dict[str, Any]) -> None:
        """Take up what `together` returned, on as many ranks or others: where they are not as many, they part anew."""
        ranks, rank = state["variables"], self._distributed.rank
        same = len(ranks) == self._distributed.size
        self.restore({**state, "variables": ranks[rank if same else 0]})
        if not same:
            self.part()

    def state(self) -> dict[str, Any]:
        """Return the states of all of them, as plain data and arrays."""
        name, keys, *rest = np.random.get_state()
        version, python, gauss = random.getstate()
        return {
            "python": [version, np.array(python, dtype=np.uint64), gauss],
            "numpy": [name, np.array(keys), *(float(each) if i else int(each) for i, each in enumerate(rest))],
            "variables": [variable.numpy() for variable in self._variables()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned."""
        version, python, gauss = state["python"]
        random.setstate((version, tuple(int(each) for each in python), gauss))
        name, keys, position, has_gauss, gauss = state["numpy"]
        np.random.set_state((name, np.asarray(keys, dtype=np.uint32), int(position), int(has_gauss), gauss))
        variables = self._variables()
        if len(variables) == len(state["variables"]):
            for variable, value in zip(variables, state["variables"], strict=True):
                variable.assign(value)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Give the generators back as they were, whatever the body draws."""
        state = self.state()
        try:
            yield
        finally:
            self.restore(state)

    def _variables(self) -> list[Any]:
        mine = [tf.random.get_global_generator().state]
        return mine + (_of_keras_3(self._model) if KERAS_3 else _of_keras_2(self._model))


def _of_keras_3(model: Any) -> list[Any]:
    seeds: Any = importlib.import_module(
        "keras.src.random.seed_generator"
    )  # Keras has no public way to its global generator
    others = {id(variable) for variable in (*model.weights, *model.metrics_variables)}
    return [seeds.global_seed_generator().state, *(v for v in model.variables if id(v) not in others)]


def _of_keras_2(model: Any) -> list[Any]:
    found: dict[int, Any] = {}
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            generator = getattr(value, "_generator", value)  # Keras wraps those of its own layers
            if isinstance(generator, tf.random.Generator):
                found[id(generator)] = generator.state
    return list(found.values())
