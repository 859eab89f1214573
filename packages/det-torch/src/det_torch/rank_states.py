"""What each rank has of its own, in a checkpoint: its random generators, and gradients that wait for their step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .context import PyTorchTrialContext


def of_ranks(context: PyTorchTrialContext, contents: Mapping[str, Any]) -> dict[str, Any]:
    """Return, on the chief, what the ranks have of their own, by rank; every rank calls it with its contents."""
    distributed, gradients = context.distributed, context.steps.gradients
    if distributed.size == 1:
        return {}
    found = {"rank_rng_states": distributed.gather(contents["rng_state"])}
    if distributed.agree(gradients is not None and gradients.pending):
        found["rank_gradients"] = distributed.gather(contents.get("gradients", {}))
    return found


def rng_of(contents: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """Return the state of a rank's generators; a rank that the checkpoint does not know takes the chief's."""
    states = contents.get("rank_rng_states", [])
    state: Mapping[str, Any] = states[rank] if rank < len(states) else contents.get("rng_state", {})
    return state


def gradients_of(contents: Mapping[str, Any], rank: int, size: int) -> Mapping[str, Any]:
    """Return the gradients that wait on a rank; on another number of ranks than they were saved by, their mean."""
    states = contents.get("rank_gradients")
    if states is None:
        waiting: Mapping[str, Any] = contents.get("gradients", {})
        return waiting
    if len(states) == size:
        return dict(states[rank])
    names = dict.fromkeys(name for state in states for name in state)
    return {name: sum(state[name] for state in states if name in state) / len(states) for name in names}
