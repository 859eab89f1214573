"""Weights that Determined saved, in the formats of its versions: HDF5, TensorFlow's checkpoints, and saved models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from det_core import TrialError

from .versions import KERAS_3

_NAME = "determined-keras-model"
_GRAPH, _VALUE, _LAYER = "_CHECKPOINTABLE_OBJECT_GRAPH", "VARIABLE_VALUE", "layer_with_weights-"
_IN_ANY_ORDER = {"non_trainable_variables", "regularization_losses", "trainable_variables", "variables", "weights"}


def find_old_weights(directory: Path) -> Path | None:
    """Return the file of the weights, for TensorFlow's formats the index of the others; None where there is none."""
    saved_models = (
        file.parent / "variables" / "variables.index" for file in sorted(directory.glob("**/saved_model.pb"))
    )
    found = (directory / f"{_NAME}.h5", *sorted(directory.glob(f"{_NAME}*.index")), *saved_models)
    return next((file for file in found if file.is_file()), None)


def read_old_weights(model: Any, file: Path) -> None:
    """Give a model the weights of a file that `find_old_weights` returned. Raises TrialError where they are another model's.

    What a model of Keras 2 has not built yet, it is given when it builds it.
    """
    if file.suffix == ".h5":
        model.load_weights(str(file))
    elif not KERAS_3 and not model.built:
        model.load_weights(str(file.with_suffix(""))).expect_partial()
    else:
        _assign(model, str(file.with_suffix("")))


def _assign(model: Any, prefix: str) -> None:
    """Follow the objects that TensorFlow saved and those of the model together, and assign the variables among them.

    Keras 3 does not read these files, but the attributes of its layers have the names that those of Keras 2 had.
    """
    reader = tf.train.load_checkpoint(prefix)
    nodes = TrackableObjectGraph.FromString(reader.get_tensor(_GRAPH)).nodes
    todo, seen, values = [(0, model)], set(), {}
    while todo:
        number, part = todo.pop()
        if (number, id(part)) in seen:
            continue
        seen.add((number, id(part)))
        for attribute in nodes[number].attributes:
            if attribute.name == _VALUE:
                values[id(part)] = reader.get_tensor(attribute.checkpoint_key)
        todo += [(child.node_id, found) for child in nodes[number].children for found in _part(part, child.local_name)]
    for weight in model.weights:
        value = values.get(id(weight))
        if value is None or tuple(weight.shape) != value.shape:
            held = "has none" if value is None else f"has one of the shape {value.shape}"
            raise TrialError(
                f"the model has a weight {weight.name!r} of the shape {tuple(weight.shape)}; the checkpoint {held}"
            )
    for weight in model.weights:
        weight.assign(values[id(weight)])


def _part(owner: Any, name: str) -> list[Any]:
    """Return what a model, a layer or a list has under the name that TensorFlow saved it by: a list of it, or an empty one."""
    if name in _IN_ANY_ORDER:
        return []
    if name.startswith(_LAYER):
        layers = [layer for layer in getattr(owner, "layers", ()) if layer.weights]
        return layers[int(name.removeprefix(_LAYER)) :][:1]
    if isinstance(owner, (list, tuple)):
        return list(owner[int(name) :][:1]) if name.isdecimal() else []
    if isinstance(owner, dict):
        return [owner[name]] if name in owner else []
    found = getattr(owner, name, None)
    return [] if found is None or (callable(found) and not hasattr(found, "weights")) else [found]
