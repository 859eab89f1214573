"""What is on a machine of the cluster for as long as a claim has it: an actor, which a driver finds by its name."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group, remove_placement_group

from det_core.agent import Ferry

_LINGERS_SECONDS, _LOOKS_SECONDS = 5.0, 1.0


class Place(Ferry):
    """Runs an agent, and looks out for the end of its machine.

    It travels to the cluster by value: the machines there need det-core, and no package of this name. When the agent has
    ended, nothing of it is left, and neither is the placement group.
    """

    def __init__(
        self, argv: tuple[str, ...], start: bytes, claim: str, node: int, nodes: int, own: dict[str, str]
    ) -> None:
        # What other machines reach this one by, unless whoever keeps it has said so.
        super().__init__(argv, start, node, {"DET_ADDRESS": ray.util.get_node_ip_address(), **os.environ, **own})
        self._claim, self._node, self._nodes = claim, node, nodes
        for each in (self._watch, self._outlive):
            threading.Thread(target=each, daemon=True).start()

    def _watch(self) -> None:
        """End the agent when its machine is about to be taken away."""
        here, noticed = ray.get_runtime_context().get_node_id(), False
        while self.agent.poll() is None and not noticed:
            time.sleep(_LOOKS_SECONDS)
            if noticed := here in draining():
                self.agent.terminate()

    def _outlive(self) -> None:
        """Wait for the agent's end, and for a driver to know of it; the last place of a claim gives its machines back.

        Where the agent was killed, its runs may go on for the time of the lease, and it is for a driver to see to that.
        """
        status = self.agent.wait()
        self.known.wait(_LINGERS_SECONDS)
        time.sleep(_LOOKS_SECONDS / 2)  # as what was said of it is on its way
        while self._are_there(range(self._node + 1, self._nodes)):
            time.sleep(_LOOKS_SECONDS)
        if (status == 0 or not self.stream) and not self._are_there(range(self._node)):
            remove_placement_group(get_current_placement_group())
        ray.kill(ray.get_runtime_context().current_actor)

    def _are_there(self, nodes: Any) -> bool:
        there = set(ray.util.list_named_actors())
        return any(place_name(self._claim, node) in there for node in nodes)


def place_name(claim: str, node: int) -> str:
    """Return the name of the actor on a machine of a claim."""
    return f"{claim}/{node}"


def draining() -> set[str]:
    """Return the ids of the machines that Ray is about to give up.

    Ray 2.60 says so to its own libraries only. Where it does not any more, machines go without notice, and trials lose what they
    have not saved.
    """
    with suppress(ImportError, AttributeError):
        from ray._private.state import state

        return set(state.get_draining_nodes())
    return set()
