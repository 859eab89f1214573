"""The settings of the engine `ray`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

_NAME = Meta(pattern=r"^[^\s]+$")
_AMOUNT = Meta(gt=0)


class RaySettings(Struct, frozen=True, kw_only=True):
    """Each trial on one or several nodes of a Ray cluster.

    The cluster's defaults apply to settings that are left out.
    """

    address: Annotated[str, _NAME] = "auto"
    """Where the cluster is: `HEAD:6379` on one of its machines, `ray://HEAD:10001` elsewhere.

    By default what `RAY_ADDRESS` says, or the cluster that this machine is of.
    """
    namespace: Annotated[str, _NAME] = "det"
    """Ray's namespace for the actors."""
    resource: Annotated[str, _NAME] = "CPU"
    """What a slot is: `CPU`, `GPU`, or a resource that the cluster calls so."""
    cpus_per_slot: Annotated[float, Meta(ge=0)] = 1
    """Cores for each slot."""
    resources: dict[str, Annotated[float, _AMOUNT]] = {}
    """What else each machine of a trial must have, such as `{"accelerator_type:A100": 0.001}`."""
    slots_per_node: Annotated[int, Meta(ge=1)] | None = None
    """Slots of each machine, which trials share, or which a trial has several of.

    By default what a trial needs.
    """
    runtime_env: dict[str, Any] | None = None
    """Ray's `runtime_env` of the agents, such as `{pip: [det-torch]}`."""
    python: str | None = None
    """The Python of the machines that has det. By default the one that Ray's workers run."""
    directory: str = "~/.cache/det/agents"
    """Where code and logs are kept on a machine while an agent is there."""
