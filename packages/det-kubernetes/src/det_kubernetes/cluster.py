"""The parts of a Kubernetes cluster that an engine needs: Jobs and pods, by label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import httpx2
from lightkube import ApiError, Client, KubeConfig
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources import batch_v1, core_v1
from lightkube.types import CascadeType, PatchType

from det_core.errors import DetError
from det_driver.engines import Allocation, AllocationState
from det_node.launch import say

from .config import AGENT, KubernetesSettings
from .objects import INSTANCE, QUEUE, secret_of, unborn

_NAME, _INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
_EXEC = "client.authentication.k8s.io/v1"
_SILENT = (httpx2.HTTPError, ConfigError, ValueError)


class Pod(NamedTuple):
    """A pod.

    `gone` is None while the agent may run, and else whether a kubelet saw it end. `reason` is why
    the pod waits, or how it ended.
    """

    node: str
    began: bool
    gone: bool | None
    reason: str


class Job(NamedTuple):
    """A Job and its pods by index, including the pods that are gone.

    `over` says that the Job starts no more pods.
    """

    machines: int = 1
    over: bool = False
    suspended: bool = False
    queue: str = ""
    reason: str = ""
    words: str = ""
    pods: Mapping[int, Pod] = {}

    def allocation(self, name: str) -> Allocation:
        """Return the state of the allocation request of this name."""
        gone = {k: True for k in range(self.machines) if self.over and k not in self.pods}
        gone |= {k: pod.gone for k, pod in self.pods.items() if pod.gone is not None}
        state = (
            AllocationState.RUNNING
            if any(p.began for p in self.pods.values() if p.gone is None)
            else AllocationState.WAITING
        )
        return Allocation(
            name=name, state=state, nodes=self.machines, native=name, reason=self.reason, gone=gone
        )


class Cluster:
    """Calls the API server. Raises ConnectionError if the server does not answer."""

    def __init__(self, settings: KubernetesSettings) -> None:
        try:
            config = KubeConfig.from_env().get(settings.context)
            if config and config.user and config.user.exec and config.user.exec.apiVersion == _EXEC:
                # The client knows this API by its older name only. The format is the same.
                config.user.exec.apiVersion += "beta1"
            self._client = Client(config, namespace=settings.namespace, field_manager="det")
        except (ConfigError, KeyError, OSError, ValueError) as error:
            raise DetError(
                f"there is no way to a cluster of Kubernetes here ({error}); KUBECONFIG has to name"
                " a file that says where it is"
            ) from None
        self._found: dict[str, Job] = {}
        self.server = httpx2.URL(self._client.config.cluster.server).host

    def find(self, site: str) -> dict[str, Job]:
        """Return an experiment's Jobs by name, and the remains of deleted ones."""
        with _asking():
            kinds: tuple[Any, ...] = (core_v1.Pod, batch_v1.Job)
            pods, jobs = (list(self._client.list(kind, labels={INSTANCE: site})) for kind in kinds)
        there: dict[str, dict[int, Pod]] = {}
        for pod in pods:
            of = there.setdefault(pod.metadata.labels.get(_NAME, ""), {})
            index = int((pod.metadata.annotations or {}).get(_INDEX, 0))
            of[index] = of[index] if index in of and not of[index].gone else _pod(pod)
        found = {name: Job(max(of) + 1, over=True, pods=of) for name, of in there.items()}
        for name, was in self._found.items():
            of = there.setdefault(name, {})
            for k in was.pods.keys() - of:
                # A kubelet that answers has ended the deleted pods of its node.
                pod = was.pods[k]
                of[k] = pod._replace(gone=bool(pod.gone) or not pod.node or self._ready(pod.node))
            found[name] = was._replace(over=True, pods=of)
        self._found = found | {
            job.metadata.name: self._job(job, there.get(job.metadata.name, {})) for job in jobs
        }
        return self._found

    def give(self, job: dict[str, Any], start: bytes) -> str:
        """Create a Job and its Secret, and then start the Job.

        If the cluster refuses one of them, both are deleted. Return what is wrong, or an empty
        string. A second call has no further effect.
        """
        try:
            with _asking():
                owner = self._apply(batch_v1.Job, unborn(job))
                self._apply(core_v1.Secret, secret_of(job, owner.metadata.uid, start))
                self._apply(batch_v1.Job, job)
        except ApiError as error:
            if error.status.code != httpx2.codes.CONFLICT:
                # A conflict means that Kueue has admitted the Job since.
                self.drop(job["metadata"]["name"], at_once=True)
                return f"the cluster refuses the Job {job['metadata']['name']}: {error}"
        return ""

    def drop(self, name: str, *, at_once: bool) -> None:
        """Delete a Job. Its pods get SIGTERM, and with `at_once` SIGKILL one second later."""
        try:
            self._client.delete(batch_v1.Job, name, cascade=CascadeType.FOREGROUND)
            pods: list[Any] = (
                list(self._client.list(core_v1.Pod, labels={_NAME: name})) if at_once else []
            )
            for pod in pods:
                self._client.delete(core_v1.Pod, pod.metadata.name, grace_period=1)
        except _SILENT as error:
            if not isinstance(error, ApiError) or error.status.code != httpx2.codes.NOT_FOUND:
                say(
                    f"the Job {name} could not be deleted ({error}); `kubectl delete job {name}`"
                    " does it"
                )

    def _ready(self, node: str) -> bool:
        """Return whether the kubelet of a node answers.

        Return False if there is no such node, or if the account may not read nodes.
        """
        with suppress(*_SILENT):
            status: Any = self._client.get(core_v1.Node, node).status
            return any(
                each.type == "Ready" and each.status == "True" for each in status.conditions or ()
            )
        return False

    def _job(self, job: Any, pods: dict[int, Pod]) -> Job:
        conditions = {
            each.type: _sentence(each)
            for each in job.status.conditions or ()
            if each.status == "True"
        }
        over, suspended = bool(conditions.keys() & {"Complete", "Failed"}), bool(job.spec.suspend)
        reasons = (pod.reason for pod in pods.values() if pod.reason and pod.gone is None)
        reason = next(reasons, "") if pods or over else self._why(job)
        words = (
            f"the Job {job.metadata.name} has failed: {conditions['Failed']}"
            if "Failed" in conditions
            else ""
        )
        return Job(
            job.spec.parallelism,
            over,
            suspended,
            job.metadata.labels.get(QUEUE, ""),
            reason,
            words,
            pods,
        )

    def _why(self, job: Any) -> str:
        """Return why a Job has no pods, from Kueue or its events.

        The reason is for example a quota or an admission webhook.
        """
        # The account may lack the permission, or there is no Kueue.
        with suppress(*_SILENT):
            if not job.spec.suspend:
                events = self._client.list(
                    core_v1.Event, fields={"involvedObject.name": job.metadata.name}
                )
                return next(
                    (_sentence(each) for each in events if each.reason == "FailedCreate"), ""
                )
            kind = create_namespaced_resource("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
            loads = self._client.list(kind, labels={"kueue.x-k8s.io/job-uid": job.metadata.uid})
            conditions = [
                each
                for load in loads
                for each in dict(load).get("status", {}).get("conditions", ())
            ]
            why = (
                each
                for each in conditions
                if each["type"] == "QuotaReserved" and each["status"] == "False"
            )
            return next((f"{each['reason']}: {each['message']}" for each in why), "")
        return ""

    def _apply(self, kind: Any, wanted: dict[str, Any]) -> Any:
        # Server-side apply refuses unknown fields, where a plain creation drops them. It can be
        # repeated.
        return self._client.patch(
            kind, wanted["metadata"]["name"], wanted, patch_type=PatchType.APPLY
        )


@contextmanager
def _asking() -> Iterator[None]:
    """Translate errors of the API server.

    Raises ConnectionError if the server does not answer, and DetError if the account has no
    permission. Other refusals stay ApiError.
    """
    try:
        yield
    except ConfigError as error:
        raise DetError(f"the credentials for Kubernetes cannot be had: {error}") from None
    except (httpx2.HTTPError, ValueError) as error:
        code = error.status.code or 0 if isinstance(error, ApiError) else 500
        if code in (401, 403):
            raise DetError(
                f"Kubernetes refuses: {error}; the README of det-kubernetes has a role"
            ) from None
        if code < 500 and code != 429:
            raise
        raise ConnectionError(f"the API server of Kubernetes does not answer ({error})") from None


def _pod(pod: Any) -> Pod:
    status, finished = pod.status, pod.status.phase in ("Succeeded", "Failed")
    states = [
        each.state for each in status.containerStatuses or () if each.name == AGENT and each.state
    ]
    end = next((state.terminated for state in states if state.terminated), None)
    unplaced = (
        each
        for each in status.conditions or ()
        if each.type == "PodScheduled" and each.status == "False"
    )
    why = next((state.waiting for state in states if state.waiting), None) or next(unplaced, None)
    leaves, node = pod.metadata.deletionTimestamp, pod.spec.nodeName or ""
    began, ended = (
        any(state.running or state.terminated for state in states),
        bool(end) or (finished and not states),
    )
    if not (ended or finished or (leaves is not None and leaves < datetime.now(UTC))):
        return Pod(node, began, None, _sentence(why) if why else "")
    words = _sentence(end if end and end.exitCode else status)
    return Pod(node, began, ended, words and f"{pod.metadata.name} on {node or 'no node'}: {words}")


def _sentence(status: Any) -> str:
    """Return a reason with the last line of its message."""
    last = (status.message or "").strip().rpartition("\n")[2]
    return f"{status.reason}: {last}" if last else str(status.reason or "")
