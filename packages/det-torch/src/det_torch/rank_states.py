"""What each rank has of its own, in a checkpoint: its random generators, its place in the data, gradients that wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .context import PyTorchTrialContext
from .sharding import is_sharded


def of_ranks(context: PyTorchTrialContext, contents: Mapping[str, Any]) -> dict[str, Any]:
    """Return, on the chief, what the ranks have of their own, by rank; every rank calls it with its contents."""
    distributed, gradients = context.distributed, context.steps.gradients
    if distributed.size == 1:
        return {}
    everyone = distributed.gather((contents["rng_state"], contents["data"])) or []
    found: dict[str, Any] = {
        "rank_rng_states": [rng for rng, _ in everyone],
        "rank_data": [data for _, data in everyone],
    }
    if distributed.agree(gradients is not None and gradients.pending):
        own = {name: value for name, value in contents.get("gradients", {}).items() if not is_sharded(value)}
        found["rank_gradients"] = distributed.gather(own)
    return found


def rng_of(contents: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """Return the state of a rank's generators; a rank that the checkpoint does not know takes the chief's."""
    states = contents.get("rank_rng_states", [])
    state: Mapping[str, Any] = states[rank] if rank < len(states) else contents.get("rng_state", {})
    return state


def data_of(contents: Mapping[str, Any], rank: int, size: int) -> Any:
    """Return the place of a rank in the data; on another number of ranks than it was saved by, the chief's."""
    states = contents.get("rank_data", [])
    return states[rank] if len(states) == size else contents.get("data")


def gradients_of(contents: Mapping[str, Any], rank: int, size: int) -> Mapping[str, Any]:
    """Return the gradients that wait on a rank; on another number of ranks than they were saved by, their mean."""
    states = contents.get("rank_gradients")
    if states is None:
        waiting: Mapping[str, Any] = contents.get("gradients", {})
        return waiting
    names = dict.fromkeys(name for state in states for name in state)
    divided = {name: value for name, value in contents.get("gradients", {}).items() if name not in names}
    if len(states) == size:
        return {**divided, **states[rank]}
    return divided | {name: sum(state[name] for state in states if name in state) / len(states) for name in names}
