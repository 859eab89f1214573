"""What is made for a claim: an Indexed Job of agents, and a Secret with what they are told."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from det_driver.engines import Claim

from .config import KubernetesSettings

AGENT, FILES = "determined-container", "/run/det/files"
INSTANCE, QUEUE = "app.kubernetes.io/instance", "kueue.x-k8s.io/queue-name"
_START, _SHM = "/run/det/start", "/dev/shm"
_LISTED_SECONDS = 600  # a Job that has ended is there so long, for those who look for what its pods said
Object = dict[str, Any]


def job_of(claim: Claim, site: str, settings: KubernetesSettings, argv: Sequence[str]) -> Object:
    """Return the Job of a claim: a pod for each machine, started once, with the Secret of the claim's name in a file."""
    labels, given = {"app.kubernetes.io/name": "det", INSTANCE: site}, settings.pod_spec.get("spec") or {}
    own: Object = next((each for each in given.get("containers") or () if each.get("name") == AGENT), {})
    pod = _pod(claim, settings, argv, {mount.get("mountPath") for mount in own.get("volumeMounts") or ()})
    template = _merged(settings.pod_spec, {"metadata": {"labels": labels}, "spec": pod})
    once = {"backoffLimit": 0, "podReplacementPolicy": "Failed", "ttlSecondsAfterFinished": _LISTED_SECONDS}
    several = {"completionMode": "Indexed", "completions": claim.nodes, "parallelism": claim.nodes}
    starts = {"suspend": bool(settings.queue), "activeDeadlineSeconds": settings.time_limit}
    spec = several | once | _told(starts) | {"template": {key: template[key] for key in ("metadata", "spec")}}
    metadata = {"name": claim.name, "labels": _told({**labels, QUEUE: settings.queue})}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def unborn(job: Object) -> Object:
    """Return a Job as it is before its Secret is there: neither the cluster nor Kueue starts it."""
    metadata = job["metadata"] | {"labels": _told({**job["metadata"]["labels"], QUEUE: None})}
    return job | {"metadata": metadata, "spec": job["spec"] | {"suspend": True}}


def secret_of(job: Object, uid: str, start: bytes) -> Object:
    """Return the Secret of a Job, which goes with it."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": uid}
    metadata = unborn(job)["metadata"] | {"ownerReferences": [owner]}
    data = {"start": base64.b64encode(start).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True, "data": data}


def _pod(claim: Claim, settings: KubernetesSettings, argv: Sequence[str], mounted: set[str]) -> Object:
    most = _told({"memory": settings.memory} | ({settings.resource: str(claim.slots)} if settings.resource else {}))
    variables = {"DET_SLOTS_TOTAL": str(claim.slots)} | ({} if settings.resource else {"CUDA_VISIBLE_DEVICES": ""})
    volumes: dict[str, tuple[str, Object]] = {
        "det-start": (_START, {"secret": {"secretName": claim.name}}),
        "det-files": (FILES, {"emptyDir": {}}),
        "det-shm": (_SHM, {"emptyDir": {"medium": "Memory"}}),  # loaders of data need more than the usual 64 MB
    }
    volumes = {name: volume for name, volume in volumes.items() if volume[0] not in mounted}
    agent = {
        **{"name": AGENT, "image": settings.image, "terminationMessagePolicy": "FallbackToLogsOnError"},
        "command": [*argv, f"{_START}/start", "$(JOB_COMPLETION_INDEX)"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": {"cpu": str(claim.slots * settings.cpus_per_slot), **most}, "limits": most},
        "volumeMounts": [{"name": name, "mountPath": path} for name, (path, _) in volumes.items()],
    }
    pod = {
        **{"restartPolicy": "Never", "terminationGracePeriodSeconds": settings.grace_period, "containers": [agent]},
        **{"serviceAccountName": settings.service_account, "priorityClassName": settings.priority_class},
        **{"nodeSelector": settings.node_selector or None, "tolerations": list(settings.tolerations) or None},
        "automountServiceAccountToken": None if settings.service_account else False,
        "volumes": [{"name": name, **volume} for name, (_, volume) in volumes.items()],
    }
    return _told(pod)


def _told(options: Object) -> Object:
    return {key: value for key, value in options.items() if value is not None}


def _merged(under: Any, over: Any) -> Any:
    """Lay one over the other: maps key by key, lists of named things name by name, other lists of maps in a row."""
    if isinstance(under, dict) and isinstance(over, dict):
        return under | {key: _merged(under.get(key), value) for key, value in over.items()}
    if isinstance(under, list) and isinstance(over, list) and all(isinstance(each, dict) for each in (*under, *over)):
        named = {each["name"]: each for each in under if "name" in each}
        ours = {each.get("name", "") for each in over}
        kept = [each for each in under if each.get("name") not in ours]
        return [_merged(named.get(each.get("name")), each) for each in over] + kept
    return over
