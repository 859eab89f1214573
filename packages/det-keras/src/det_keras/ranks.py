"""The ranks of a run: they meet, begin with the same weights, and each draws random numbers of its own."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from det_core import Communicator, RunInfo, ranks

from .backends import KerasBackend
from .drift import Drift
from .metrics import MetricObjects

_REFUSAL = (
    "the backend {name} cannot reduce Keras's gradients; derive it from det_keras.backends.KerasBackend, or set "
    "distributed.backend to native"
)


def join_ranks(run: RunInfo) -> KerasBackend | None:
    """Meet the other ranks of a run; returns None where there is one only.

    Raises PluginError where the run's backend is of a plugin that knows nothing of TensorFlow's tensors.
    """
    backend: KerasBackend | None = ranks.join_ranks(run, KerasBackend, _REFUSAL)
    return backend


def without_xla(model: Any) -> None:
    """Compile a model's steps without XLA, which has no kernels for what the ranks exchange, and say so."""
    if model.jit_compile:
        model.jit_compile = False
        if _asked_for_xla(model):
            warnings.warn(
                "the model is compiled with jit_compile=True, but XLA cannot exchange gradients between ranks; it is off here",
                stacklevel=2,
            )


def tell_of_local_statistics(model: Any) -> None:
    """Warn of layers that are to synchronize their statistics, which they do under a strategy of TensorFlow's only."""
    names = [layer.name for layer in model._flatten_layers() if getattr(layer, "synchronized", False)]
    if names:
        warnings.warn(
            f"{names[0]} has synchronized=True, which Keras heeds under tf.distribute only; each rank has the statistics of its "
            "own part of a batch",
            stacklevel=2,
        )


def _asked_for_xla(model: Any) -> bool:
    """Keras 3 decides by itself where nobody asked."""
    config = getattr(model, "_compile_config", None)
    asked = getattr(config, "config", {}).get("jit_compile") if config is not None else None
    return asked is True


def spread(variables: Sequence[Any], distributed: Communicator) -> None:
    """Give variables the chief's values on every rank."""
    mine = [variable.numpy() for variable in variables] if distributed.rank == 0 else None
    for variable, value in zip(variables, distributed.broadcast(mine), strict=True):
        if distributed.rank:
            variable.assign(value)


def drift_of(model: Any, objects: MetricObjects, distributed: Communicator) -> Drift:
    """Return a model's weights that no gradient trains, as they drift apart over the ranks; metrics have a way of their own."""

    def read() -> dict[str, Any]:
        metrics = {id(each) for each in objects.variables()}
        weights = model.non_trainable_weights
        return {str(i): each.numpy() for i, each in enumerate(weights) if id(each) not in metrics}

    def write(values: Mapping[str, Any]) -> None:
        weights = model.non_trainable_weights
        for place, value in values.items():
            weights[int(place)].assign(value)

    return Drift(read, write, distributed)
