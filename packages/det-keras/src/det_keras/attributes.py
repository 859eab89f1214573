"""Finds the state in a model's attributes that Keras's files leave out.

That is: variables, states of recurrent layers, metrics and generators.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import tensorflow as tf

from .versions import KERAS_3, keras

_VARIABLES = (tf.Variable, keras.Variable) if KERAS_3 else (tf.Variable,)
_LIBRARIES = {
    "builtins",
    "det_core",
    "det_keras",
    "det_node",
    "keras",
    "numpy",
    "tensorflow",
    "tf_keras",
}
# Counters of Keras 2. Their values follow from the trial's position and configuration.
_COUNTERS = {"_train_counter", "_test_counter", "_predict_counter", "_steps_per_execution"}


def only_variables(weights: Iterable[Any]) -> list[Any]:
    """Return the variables among a model's weights.

    Keras 2 also lists vocabularies of text layers there.
    """
    return [weight for weight in weights if isinstance(weight, _VARIABLES)]


def find_optimizers(model: Any) -> list[Any]:
    """Return the optimizers in the attributes of a model, its layers, and objects in them."""
    return [part for _, part in _find_parts(model) if is_optimizer(part)]


def find_generators(model: Any) -> list[Any]:
    """Return the states of the generators of TensorFlow and Keras among those attributes."""
    return [part.state for _, part in _find_parts(model) if is_generator(part)]


def find_variables(model: Any, known: Iterable[Any]) -> dict[str, Any]:
    """Return the variables among those attributes, and those of metrics, by their path.

    Weights and `known` variables are left out.
    """
    seen = {id(variable) for variable in (*model.weights, *known)}
    found: dict[str, Any] = {}
    for path, part in _find_parts(model):
        variables = part.variables if isinstance(part, keras.metrics.Metric) else [part]
        for place, variable in enumerate(variables):
            if isinstance(variable, _VARIABLES) and id(variable) not in seen:
                seen.add(id(variable))
                found[path if variable is part else f"{path}.{place}"] = variable
    return found


def read_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of variables by name."""
    return {name: variable.numpy() for name, variable in variables.items()}


def write_variables(variables: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Assign the values that fit, and return the names of the others."""
    left = []
    for name, value in values.items():
        variable = variables.get(name)
        if variable is None or tuple(variable.shape) != np.shape(value):
            left.append(name)
        else:
            variable.assign(value)
    return left


def counters_of(model: Any) -> list[Any]:
    """Return the counters that Keras 2 keeps in variables of a model."""
    return only_variables(vars(model).get(name) for name in _COUNTERS)


def is_optimizer(part: Any) -> bool:
    """Return whether an object is an optimizer of Keras."""
    legacy = None if KERAS_3 else getattr(keras.optimizers, "legacy", None)
    return isinstance(part, keras.optimizers.Optimizer) or (
        legacy is not None and isinstance(part, legacy.Optimizer)
    )


def is_generator(part: Any) -> bool:
    """Return whether an object is a random generator of TensorFlow's or Keras's."""
    return isinstance(part, tf.random.Generator) or (
        KERAS_3 and isinstance(part, keras.random.SeedGenerator)
    )


def _find_parts(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield each optimizer, generator, metric and variable once, with the path of attributes to it.

    Paths name layers by their positions, because Keras gives them different names in each process.
    """
    layers = list(model._flatten_layers())
    todo = deque((f"layers[{place}]", layer) for place, layer in enumerate(layers))
    seen = {id(layer) for layer in layers}
    while todo:
        path, part = todo.popleft()
        if (
            is_optimizer(part)
            or is_generator(part)
            or isinstance(part, (keras.metrics.Metric, *_VARIABLES))
        ):
            yield path, part
            continue
        for name, child in _children(part):
            if id(child) not in seen and _may_hold_state(child):
                seen.add(id(child))
                todo.append((f"{path}{name}", child))


def _children(part: Any) -> list[tuple[str, Any]]:
    if isinstance(part, dict):
        return [(f"[{key!r}]", child) for key, child in part.items()]
    if isinstance(part, (list, tuple)):
        return [(f"[{place}]", child) for place, child in enumerate(part)]
    attributes = [item for item in vars(part).items() if item[0] not in _COUNTERS]
    # Put the user's names before Keras's.
    attributes.sort(key=lambda item: item[0].startswith("_"))
    return [(f".{name}", child) for name, child in attributes]


def _may_hold_state(value: Any) -> bool:
    """Return whether an object's attributes are searched.

    That is so for parts, containers, layers, modules and objects of the user's classes.
    """
    if isinstance(
        value, (dict, list, tuple, keras.metrics.Metric, keras.layers.Layer, tf.Module, *_VARIABLES)
    ):
        return True
    if is_optimizer(value) or is_generator(value):
        return True
    if isinstance(value, (type, ModuleType, FunctionType, MethodType, partial)) or not hasattr(
        value, "__dict__"
    ):
        return False
    return type(value).__module__.partition(".")[0] not in _LIBRARIES
