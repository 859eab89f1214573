"""The random generators other than those of the data.

They are Python's, NumPy's and TensorFlow's global generators, and those of the model's layers.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import Communicator
from det_core.train.rng import plain_host_rng, set_host_rng

from .attributes import find_generators, is_generator
from .versions import KERAS_3, keras

# A prime, so that the ranks' generators do not overlap.
_APART = 7_919


def seed_everything(seed: int) -> None:
    """Seed all global generators, and make Keras use generators that a checkpoint can hold."""
    if not KERAS_3:
        # Otherwise dropout draws from a state in its kernels, which cannot be saved.
        keras.backend.experimental.enable_tf_random_generator()
    keras.utils.set_random_seed(seed)
    tf.random.set_global_generator(tf.random.Generator.from_seed(seed))


class Generators:
    """The generators that training draws from.

    All ranks draw the same numbers from Python's and NumPy's, and different ones from Keras's.
    """

    def __init__(self, model: Any, distributed: Communicator) -> None:
        self._model, self._distributed = model, distributed

    def part(self) -> None:
        """Make this rank draw other numbers than the ranks that were seeded equally."""
        rank = self._distributed.rank
        if rank:
            for variable in self.variables():
                state = variable.numpy().copy()
                state.flat[0] += np.asarray(rank * _APART).astype(state.dtype)
                variable.assign(state)

    def together(self) -> dict[str, Any]:
        """Return the states of all ranks. Every rank must call it."""
        mine = self.state()
        ranks = (
            self._distributed.allgather(mine["variables"])
            if self._distributed.size > 1
            else [mine["variables"]]
        )
        return {**mine, "variables": ranks}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `together`.

        With another number of ranks, each rank derives new states from the chief's.
        """
        ranks, rank = state["variables"], self._distributed.rank
        same = len(ranks) == self._distributed.size
        self.restore({**state, "variables": ranks[rank if same else 0]})
        if not same:
            self.part()

    def state(self) -> dict[str, Any]:
        """Return the states of all generators, as plain data and arrays."""
        return {
            **plain_host_rng(),
            "variables": [variable.numpy() for variable in self.variables()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        set_host_rng(state)
        for variable, value in zip(self.variables(), state["variables"], strict=False):
            if tuple(variable.shape) == np.shape(value):
                variable.assign(value)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Restore the generators after the body."""
        host, states = (
            plain_host_rng(),
            [(variable, variable.numpy()) for variable in self.variables()],
        )
        try:
            yield
        finally:
            set_host_rng(host)
            # The body may have made other variables, so use the ones from before.
            for variable, state in states:
                variable.assign(state)

    def warn_of_shared(self, dataset: Any) -> None:
        """Warn if a `tf.data` pipeline draws from generators that the model draws from, too.

        The pipeline reads ahead, so that neither draws the same numbers again.
        """
        drawn = {id(handle) for handle in _captured(dataset)}
        shared = {id(v) for v in self.variables() if id(variable_of(v).handle) in drawn}
        if not shared:
            return
        layers = [
            layer.name
            for layer in self._model._flatten_layers()
            if any(id(state) in shared for state in _states(layer))
        ]
        names = ", ".join(layers[:3]) or "a generator of the model, or a global one,"
        warnings.warn(
            f"{names} draws random numbers in the training data and in the model, in no certain"
            " order, so that no run is repeated or resumed exactly; make one layer for"
            " build_training_data_loader and another one for the model",
            stacklevel=2,
        )

    def variables(self) -> list[Any]:
        """Return the states of the generators.

        Those that are found only in the model's attributes are last.
        """
        own = _of_keras_3(self._model) if KERAS_3 else _of_keras_2(self._model)
        found = [tf.random.get_global_generator().state, *own, *find_generators(self._model)]
        return list({id(variable): variable for variable in found}.values())


def _of_keras_3(model: Any) -> list[Any]:
    # Keras has no public access to its global generator.
    seeds: Any = importlib.import_module("keras.src.random.seed_generator")
    others = {id(variable) for variable in (*model.weights, *model.metrics_variables)}
    return [
        seeds.global_seed_generator().state,
        *(v for v in model.variables if id(v) not in others),
    ]


def _of_keras_2(model: Any) -> list[Any]:
    found = [state for layer in model._flatten_layers() for state in _states(layer)]
    return list({id(state): state for state in found}.values())


def _states(layer: Any) -> list[Any]:
    """Return the states of the generators that a layer has as attributes."""
    # Keras 2 wraps the generators of its own layers.
    own = [getattr(value, "_generator", value) for value in vars(layer).values()]
    return [generator.state for generator in own if is_generator(generator)]


def _captured(dataset: Any) -> Iterator[Any]:
    """Yield the tensors, and handles of variables, that the functions of a pipeline use."""
    todo = [] if dataset is None else [dataset]
    while todo:
        each = todo.pop()
        todo += each._inputs()
        for function in each._functions():
            yield from function.function.captured_inputs


def variable_of(variable: Any) -> Any:
    """Return TensorFlow's variable of one of Keras's or TensorFlow's own."""
    return variable if isinstance(variable, tf.Variable) else variable.value
