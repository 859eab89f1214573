"""The objects of an allocation request: an Indexed Job, and a Secret with its start data."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from det_driver.engines import AllocationRequest

from .config import AGENT, KubernetesSettings

FILES = "/run/det/files"
INSTANCE, QUEUE = "app.kubernetes.io/instance", "kueue.x-k8s.io/queue-name"
# It is a mount of the container's own.
_START, _SHM = "/run/det/start", "/dev/shm"  # nosec B108
# How long a Job is kept after its end, so that the output of its pods can be read.
_LISTED_SECONDS = 600
Object = dict[str, Any]


def job_of(
    request: AllocationRequest, site: str, settings: KubernetesSettings, argv: Sequence[str]
) -> Object:
    """Return the Job of an allocation request.

    It has one pod for each node. Each pod starts only once, and mounts the Secret of the request's
    name.
    """
    labels, given = (
        {"app.kubernetes.io/name": "det", INSTANCE: site},
        settings.pod_spec.get("spec") or {},
    )
    own: Object = next(
        (each for each in given.get("containers") or () if each.get("name") == AGENT), {}
    )
    pod = _pod(
        request, settings, argv, {mount.get("mountPath") for mount in own.get("volumeMounts") or ()}
    )
    template = _merged(settings.pod_spec, {"metadata": {"labels": labels}, "spec": pod})
    once = {
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": _LISTED_SECONDS,
    }
    several = {
        "completionMode": "Indexed",
        "completions": request.nodes,
        "parallelism": request.nodes,
    }
    starts = {"suspend": bool(settings.queue), "activeDeadlineSeconds": settings.time_limit}
    spec = (
        several
        | once
        | _drop_none(starts)
        | {"template": {key: template[key] for key in ("metadata", "spec")}}
    )
    metadata = {"name": request.name, "labels": _drop_none({**labels, QUEUE: settings.queue})}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def unborn(job: Object) -> Object:
    """Return a Job without its Secret: suspended, and without a queue for Kueue."""
    metadata = job["metadata"] | {"labels": _drop_none({**job["metadata"]["labels"], QUEUE: None})}
    return job | {"metadata": metadata, "spec": job["spec"] | {"suspend": True}}


def secret_of(job: Object, uid: str, start: bytes) -> Object:
    """Return the Secret of a Job. Kubernetes deletes it with the Job."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": uid}
    metadata = unborn(job)["metadata"] | {"ownerReferences": [owner]}
    data = {"start": base64.b64encode(start).decode()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "immutable": True,
        "data": data,
    }


def _pod(
    request: AllocationRequest, settings: KubernetesSettings, argv: Sequence[str], mounted: set[str]
) -> Object:
    most = _drop_none(
        {"memory": settings.memory}
        | ({settings.resource: str(request.slots)} if settings.resource else {})
    )
    variables = {"DET_SLOTS_TOTAL": str(request.slots)} | (
        {} if settings.resource else {"CUDA_VISIBLE_DEVICES": ""}
    )
    volumes: dict[str, tuple[str, Object]] = {
        "det-start": (_START, {"secret": {"secretName": request.name}}),
        "det-files": (FILES, {"emptyDir": {}}),
        # Data loaders need more than the default of 64 MB.
        "det-shm": (_SHM, {"emptyDir": {"medium": "Memory"}}),
    }
    volumes = {name: volume for name, volume in volumes.items() if volume[0] not in mounted}
    agent = {
        **{
            "name": AGENT,
            "image": settings.image,
            "terminationMessagePolicy": "FallbackToLogsOnError",
        },
        "command": [*argv, f"{_START}/start", "$(JOB_COMPLETION_INDEX)"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {
            "requests": {"cpu": str(request.slots * settings.cpus_per_slot), **most},
            "limits": most,
        },
        "volumeMounts": [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()],
    }
    pod = {
        **{
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": settings.grace_period,
            "containers": [agent],
        },
        **{
            "serviceAccountName": settings.service_account,
            "priorityClassName": settings.priority_class,
        },
        **{
            "nodeSelector": settings.node_selector or None,
            "tolerations": list(settings.tolerations) or None,
        },
        "automountServiceAccountToken": None if settings.service_account else False,
        "volumes": [{"name": name, **volume} for name, (_, volume) in volumes.items()],
    }
    return _drop_none(pod)


def _drop_none(options: Object) -> Object:
    return {key: value for key, value in options.items() if value is not None}


def _merged(under: Any, over: Any) -> Any:
    """Merge two values, where `over` has precedence.

    Maps are merged by key, and lists of maps by the `name` of their items. Maps without a name are
    concatenated.
    """
    if isinstance(under, dict) and isinstance(over, dict):
        return under | {key: _merged(under.get(key), value) for key, value in over.items()}
    if (
        isinstance(under, list)
        and isinstance(over, list)
        and all(isinstance(each, dict) for each in (*under, *over))
    ):
        named = {each["name"]: each for each in under if "name" in each}
        ours = {each.get("name", "") for each in over}
        kept = [each for each in under if each.get("name") not in ours]
        return [_merged(named.get(each.get("name")), each) for each in over] + kept
    return over
