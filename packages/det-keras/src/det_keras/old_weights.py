"""Reads weights that Determined saved: HDF5, TensorFlow's checkpoints, and saved models."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from det_core import TrialError

from .bundles import check_variables
from .versions import KERAS_3

_NAME = "determined-keras-model"
_GRAPH, _VALUE, _LAYER = "_CHECKPOINTABLE_OBJECT_GRAPH", "VARIABLE_VALUE", "layer_with_weights-"
_IN_ANY_ORDER = {
    "non_trainable_variables",
    "regularization_losses",
    "trainable_variables",
    "variables",
    "weights",
}


def find_old_weights(directory: Path) -> Path | None:
    """Return the file of the weights, or None. For TensorFlow's formats it is the index file."""
    saved_models = (
        file.parent / "variables" / "variables.index"
        for file in sorted(directory.glob("**/saved_model.pb"))
    )
    found = (
        directory / f"{_NAME}.h5",
        directory / _NAME,
        *sorted(directory.glob(f"{_NAME}*.index")),
        *saved_models,
    )
    return next((file for file in found if file.is_file()), None)


def read_old_weights(model: Any, file: Path) -> None:
    """Load the weights of a file from `find_old_weights` into a model.

    A model of Keras 2 gets weights that are not built yet when it is built. Raises TrialError if
    the weights are another model's.
    """
    if file.suffix == ".h5":
        model.load_weights(str(file))
        return
    # The file is HDF5 too, but Keras needs the suffix to recognize it.
    if file.name == _NAME:
        with tempfile.TemporaryDirectory(prefix="det-weights-") as folder:
            model.load_weights(str(shutil.copyfile(file, Path(folder) / f"{_NAME}.h5")))
        return
    check_variables(file.with_suffix(""))
    if not KERAS_3 and not model.built:
        model.load_weights(str(file.with_suffix(""))).expect_partial()
    else:
        _assign(model, str(file.with_suffix("")))


def _assign(model: Any, prefix: str) -> None:
    """Match the saved objects with those of the model, and assign the variables among them.

    Keras 3 does not read these files, but its layers have attributes of the same names as those of
    Keras 2.
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
        todo += [
            (child.node_id, found)
            for child in nodes[number].children
            for found in _part(part, child.local_name)
        ]
    for weight in model.weights:
        value = values.get(id(weight))
        if value is None or tuple(weight.shape) != value.shape:
            held = "has none" if value is None else f"has one of the shape {value.shape}"
            raise TrialError(
                f"the model has a weight {weight.name!r} of the shape {tuple(weight.shape)}; the"
                f" checkpoint {held}"
            )
    for weight in model.weights:
        weight.assign(values[id(weight)])


def _part(owner: Any, name: str) -> list[Any]:
    """Return the part that TensorFlow saved under a name, as a list of at most one.

    `owner` is a model, a layer or a list.
    """
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
