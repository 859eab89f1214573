"""Connects the ranks of a run, and gives them equal weights at the start."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from det_core import Communicator, RunInfo
from det_core.train import ranks

from .attributes import only_variables
from .backends import KerasBackend
from .metrics import MetricObjects
from .unreduced import UnreducedVariables

_REFUSAL = (
    "the backend {name} cannot reduce Keras's gradients; derive it from"
    " det_keras.backends.KerasBackend, or set distributed.backend to native"
)


def join_ranks(run: RunInfo) -> KerasBackend | None:
    """Connect to the other ranks of a run. Return None if there is only one rank.

    Raises PluginError if the run's backend cannot reduce TensorFlow's tensors.
    """
    backend: KerasBackend | None = ranks.join_ranks(run, KerasBackend, _REFUSAL)
    return backend


def without_xla(model: Any) -> None:
    """Compile a model's steps without XLA, which has no kernels for the exchange between ranks.

    Warn if the user has set `jit_compile`.
    """
    if model.jit_compile:
        model.jit_compile = False
        if _asked_for_xla(model):
            warnings.warn(
                "the model is compiled with jit_compile=True, but XLA cannot exchange gradients"
                " between ranks; it is off here",
                stacklevel=2,
            )


def warn_about_local_statistics(model: Any) -> None:
    """Warn about layers with synchronized statistics, which need a strategy of TensorFlow."""
    names = [
        layer.name for layer in model._flatten_layers() if getattr(layer, "synchronized", False)
    ]
    if names:
        warnings.warn(
            f"{names[0]} has synchronized=True, which Keras heeds under tf.distribute only; each"
            " rank has the statistics of its own part of a batch",
            stacklevel=2,
        )


def _asked_for_xla(model: Any) -> bool:
    """Return whether the user has set `jit_compile`. Otherwise Keras 3 decides by itself."""
    config = getattr(model, "_compile_config", None)
    asked = getattr(config, "config", {}).get("jit_compile") if config is not None else None
    return asked is True


def spread(variables: Sequence[Any], distributed: Communicator) -> None:
    """Give variables the chief's values on every rank."""
    mine = [variable.numpy() for variable in variables] if distributed.rank == 0 else None
    for variable, value in zip(variables, distributed.broadcast(mine), strict=True):
        if distributed.rank:
            variable.assign(value)


def find_unreduced_variables(
    model: Any, objects: MetricObjects, distributed: Communicator
) -> UnreducedVariables:
    """Return a model's weights that no gradient trains, without the variables of metrics."""

    def read() -> dict[str, Any]:
        metrics = {id(each) for each in objects.variables()}
        weights = only_variables(model.non_trainable_weights)
        return {str(i): each.numpy() for i, each in enumerate(weights) if id(each) not in metrics}

    def write(values: Mapping[str, Any]) -> None:
        weights = only_variables(model.non_trainable_weights)
        for place, value in values.items():
            weights[int(place)].assign(value)

    return UnreducedVariables(read, write, distributed)
