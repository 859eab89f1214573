"""The settings of the engine `kubernetes`."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from det_core.config.fields import needed

_NAME = Meta(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
_QUANTITY = Meta(pattern=r"^\d+(\.\d+)?(m|[kMGTPE]i?)?$")

AGENT = "determined-container"
_OURS = ("image", "command", "args", "workingDir")


class KubernetesSettings(Struct, frozen=True, kw_only=True):
    """Each trial in a Job of a Kubernetes cluster.

    The cluster's defaults apply to settings that are left out.
    """

    image: Annotated[
        str,
        Meta(pattern=r"^\S+$"),
        needed("name an image that has Python, det and what trials import"),
    ]
    """The image of the pods: Python, det, and what trials import."""
    context: str | None = None
    """The context of the kubeconfig.

    By default its current one, or the cluster that this process is a pod of.
    """
    namespace: Annotated[str, _NAME] | None = None
    """The namespace. By default that of the context."""
    address: Annotated[str, Meta(pattern=r"^\S+$")] | None = None
    """The address or the headless service at which pods reach this machine.

    By default that on the way to the API server.
    """
    queue: Annotated[str, _NAME] | None = None
    """The local queue of Kueue, which admits Jobs."""
    priority_class: Annotated[str, _NAME] | None = None
    """The pods' priority class."""
    service_account: Annotated[str, _NAME] | None = None
    """The pods' service account, whose token they get then. By default they get none."""
    node_selector: dict[str, str] = {}
    """Labels that the nodes must have."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Taints that the pods tolerate, as Kubernetes writes them."""
    resource: Annotated[str, Meta(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    """What a slot is, such as `nvidia.com/gpu`. By default it is a CPU."""
    cpus_per_slot: Annotated[int, Meta(ge=1)] = 1
    """Cores for each slot."""
    memory: Annotated[str, _QUANTITY] | None = None
    """The memory of each pod, such as `32Gi`."""
    slots_per_node: Annotated[int, Meta(ge=1)] | None = None
    """Slots of each pod, which trials share, or which a trial has several of.

    By default what a trial needs.
    """
    time_limit: Annotated[int, Meta(ge=1)] | None = None
    """Seconds after which Kubernetes ends a Job, whose trials go on in the next."""
    grace_period: Annotated[int, Meta(ge=0)] = 600
    """Seconds that a pod which is taken away has to save.

    By default the configuration's `preemption_timeout`.
    """
    pod_spec: dict[str, Any] = {}
    """A pod to start from, with `metadata` and `spec`.

    The container `determined-container` is det's.
    """
    python: Annotated[str, Meta(pattern=r"^\S+$")] = "python3"
    """The Python of the image that has det."""

    def __post_init__(self) -> None:
        for kind in ("containers", "initContainers"):
            for each in (self.pod_spec.get("spec") or {}).get(kind) or ():
                given = [key for key in _OURS if key in each] if each.get("name") == AGENT else []
                if given:
                    raise ValueError(
                        f"pod_spec sets {', '.join(given)} of {AGENT}, which is det's own: give"
                        " engine.image for its image, the entrypoint for its command, and name a"
                        " container of yours otherwise"
                    )
