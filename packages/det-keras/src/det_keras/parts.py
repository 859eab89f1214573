"""Saves optimizers to a checkpoint and restores them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from det_core import TrialError

from .optim import build_optimizer, loss_scale_of, trained_by, variables_of, waiting_of
from .versions import keras


def optimizer_state(optimizer: Any, weights: Sequence[Any], distributed: Any) -> dict[str, Any]:
    """Return an optimizer's variables, its learning rate, and its waiting gradients.

    On several ranks these are the means over the ranks, for another number of ranks, and those of
    each rank.
    """
    waiting = (
        [variable.numpy() for variable in waiting_of(optimizer).variables]
        if waiting_of(optimizer)
        else []
    )
    ranks: list[list[Any]] = []
    if distributed.size > 1 and waiting:
        ranks = distributed.allgather(waiting)
        waiting = [
            waiting[0],
            *(sum(parts) / distributed.size for parts in list(zip(*ranks, strict=True))[1:]),
        ]
        if not any(np.any(each) for own in ranks for each in own[1:]):
            ranks = []
    return {
        "variables": [variable.numpy() for variable in variables_of(optimizer)],
        "trains": trained_by(optimizer, weights),
        "learning_rate": learning_rate_of(optimizer),
        "waiting": waiting,
        "waiting_of_ranks": ranks,
    }


def build_as_saved(optimizer: Any, state: dict[str, Any], weights: Sequence[Any]) -> None:
    """Make an optimizer's variables as they were saved, if the model still has its weights."""
    mine = [weights[place] for place in state["trains"] if place < len(weights)]
    if mine and len(mine) == len(state["trains"]):
        build_optimizer(optimizer, mine)
        waiting = waiting_of(optimizer)
        if waiting is not None:
            waiting.build(mine)


def restore_optimizer(optimizer: Any, state: dict[str, Any], distributed: Any = None) -> None:
    """Restore the result of `optimizer_state`.

    Without `distributed`, every rank gets the means of the waiting gradients. Raises TrialError if
    it is of another optimizer or model.
    """
    variables, values = variables_of(optimizer), state["variables"]
    # Old checkpoints do not hold the loss scale of Keras 2.
    if (scale := len(loss_scale_of(optimizer))) and len(values) == len(variables) - scale:
        variables = variables[:-scale]
    _assign(variables, values, f"the optimizer {type(optimizer).__name__}")
    restore_learning_rate(optimizer, state["learning_rate"])
    waiting = waiting_of(optimizer)
    if waiting is not None and state["waiting"]:
        ranks = state.get("waiting_of_ranks", [])
        is_known = distributed is not None and len(ranks) == distributed.size
        found = ranks[distributed.rank] if is_known else state["waiting"]
        _assign(waiting.variables, found, "the gradients that wait for their step")


def _assign(variables: Sequence[Any], values: Sequence[Any], name: str) -> None:
    shapes = [tuple(variable.shape) for variable in variables]
    if shapes != [np.shape(value) for value in values]:
        raise TrialError(
            f"the checkpoint does not fit {name}: it holds {len(values)} variables, and there are"
            f" {len(shapes)}, or of other shapes"
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def restore_learning_rate(optimizer: Any, rate: float | None) -> None:
    """Set the result of `learning_rate_of`, unless there is a schedule now or was one then."""
    if rate is not None and learning_rate_of(optimizer) is not None:
        optimizer.learning_rate = rate


def learning_rate_of(optimizer: Any) -> float | None:
    """Return the learning rate, or None if it is a schedule."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(
        getattr(inner, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule
    ):
        return None
    try:
        rate = optimizer.learning_rate
        return float(rate.numpy() if hasattr(rate, "numpy") else rate)
    except (TypeError, ValueError, AttributeError):
        return None
