"""A Kubernetes cluster as an engine sees it: the Jobs of an experiment and their pods, by label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from threading import Event
from typing import Any, NamedTuple, TypeVar

import httpx2
from lightkube import ApiError, Client, KubeConfig
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources import batch_v1, core_v1
from lightkube.types import CascadeType, PatchType

from det_core.errors import DetError
from det_core.launch import say

from .config import KubernetesSettings
from .objects import AGENT, INSTANCE, QUEUE, secret_of, unborn

_PAUSE_SECONDS = 1.0
_NAME, _INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
_EXEC = "client.authentication.k8s.io/v1"
_SILENT = (httpx2.HTTPError, ConfigError, ValueError)
_Found = TypeVar("_Found")


class Pod(NamedTuple):
    """A pod: `ended` says that its kubelet has seen the agent end, or that none began; `overdue`, that it should have."""

    uid: str
    name: str
    node: str
    began: bool
    ended: bool
    overdue: bool
    reason: str
    words: str


class Job(NamedTuple):
    """A Job and its pods, by index; `over` says that it starts none any more, `reason` for what it waits."""

    machines: int = 1
    over: bool = False
    suspended: bool = False
    queue: str = ""
    reason: str = ""
    words: str = ""
    pods: Mapping[int, Pod] = {}


class Cluster:
    """Asks the API server, which is waited for where it does not answer, until it is `over`."""

    def __init__(self, settings: KubernetesSettings, over: Event) -> None:
        self._over = over
        try:
            config = KubeConfig.from_env().get(settings.context)
            if config and config.user and config.user.exec and config.user.exec.apiVersion == _EXEC:
                config.user.exec.apiVersion += "beta1"  # the client knows it by this name alone; the answer is the same
            self._client = Client(config, namespace=settings.namespace, field_manager="det")
        except (ConfigError, KeyError, OSError, ValueError) as error:
            raise DetError(
                f"there is no way to a cluster of Kubernetes here ({error}); KUBECONFIG has to name a file that says where it is"
            ) from None
        self.server = httpx2.URL(self._client.config.cluster.server).host

    def find(self, site: str) -> dict[str, Job]:
        """Return the Jobs of an experiment by name, and what is left of those that somebody has deleted."""
        kinds: tuple[Any, ...] = (batch_v1.Job, core_v1.Pod)
        jobs, pods = self._wait(lambda: [list(self._client.list(kind, labels={INSTANCE: site})) for kind in kinds])
        found: dict[str, dict[int, Pod]] = {}
        for pod in pods:
            there = found.setdefault(pod.metadata.labels.get(_NAME, ""), {})
            index = int((pod.metadata.annotations or {}).get(_INDEX, 0))
            there[index] = there[index] if index in there and not there[index].ended else _pod(pod)
        left = {name: Job(over=True, pods=each) for name, each in found.items()}
        return left | {job.metadata.name: self._job(job, found.get(job.metadata.name, {})) for job in jobs}

    def give(self, job: dict[str, Any], start: bytes) -> str:
        """Create a Job, its Secret, and let it begin; return what is wrong with it, or nothing. Twice is harmless."""
        try:
            uid = self._wait(lambda: self._apply(batch_v1.Job, unborn(job))).metadata.uid
            self._wait(lambda: self._apply(core_v1.Secret, secret_of(job, uid, start)))
            self._wait(lambda: self._apply(batch_v1.Job, job))
        except ApiError as error:
            if error.status.code != httpx2.codes.CONFLICT:  # that of a Job which Kueue has admitted since
                return f"the cluster refuses the Job {job['metadata']['name']}: {error}"
        return ""

    def drop(self, name: str, *, at_once: bool) -> None:
        """Delete a Job: its pods get SIGTERM, and with `at_once` SIGKILL a second later."""
        try:
            self._client.delete(batch_v1.Job, name, cascade=CascadeType.FOREGROUND)
            pods: list[Any] = list(self._client.list(core_v1.Pod, labels={_NAME: name})) if at_once else []
            for pod in pods:
                self._client.delete(core_v1.Pod, pod.metadata.name, grace_period=1)
        except _SILENT as error:
            if not isinstance(error, ApiError) or error.status.code != httpx2.codes.NOT_FOUND:
                say(f"the Job {name} could not be deleted ({error}); `kubectl delete job {name}` does it")

    def ready(self, node: str) -> bool:
        """Tell whether the kubelet of a node answers; not where there is none, or where that may not be asked."""
        try:
            status: Any = self._client.get(core_v1.Node, node).status
        except _SILENT:
            return False
        return any(each.type == "Ready" and each.status == "True" for each in status.conditions or ())

    def _job(self, job: Any, pods: dict[int, Pod]) -> Job:
        ends = [
            each
            for each in job.status.conditions or ()
            if each.type in ("Complete", "Failed") and each.status == "True"
        ]
        reason = next((pod.reason for pod in pods.values() if pod.reason), "")
        if not pods and not ends:
            try:
                reason = self._of_kueue(job.metadata.uid) if job.spec.suspend else self._of_events(job.metadata.name)
            except _SILENT:
                reason = ""  # it may not be asked, or there is no Kueue
        queue, words = job.metadata.labels.get(QUEUE, ""), (_sentence(each) for each in ends if each.type == "Failed")
        return Job(job.spec.parallelism, bool(ends), bool(job.spec.suspend), queue, reason, next(words, ""), pods)

    def _of_kueue(self, uid: str) -> str:
        kind = create_namespaced_resource("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
        loads = [dict(load) for load in self._client.list(kind, labels={"kueue.x-k8s.io/job-uid": uid})]
        said = [each for load in loads for each in load.get("status", {}).get("conditions", ())]
        why = [each for each in said if each["type"] == "QuotaReserved" and each["status"] == "False"]
        return next((f"{each['reason']}: {each['message']}" for each in why), "")

    def _of_events(self, name: str) -> str:
        """Return why a Job has no pods, which only its events say: a quota, or an admission webhook."""
        events = self._client.list(core_v1.Event, fields={"involvedObject.name": name})
        return next((_sentence(each) for each in events if each.reason == "FailedCreate"), "")

    def _apply(self, kind: Any, wanted: dict[str, Any]) -> Any:
        # Server-side apply refuses fields that it does not know, which a plain creation drops, and it may be repeated.
        return self._client.patch(kind, wanted["metadata"]["name"], wanted, patch_type=PatchType.APPLY)

    def _wait(self, ask: Callable[[], _Found]) -> _Found:
        """Return what the server answers, as soon as it does; ApiError where it refuses."""
        said = ""
        while True:
            try:
                return ask()
            except ConfigError as error:
                raise DetError(f"the credentials for Kubernetes cannot be had: {error}") from None
            except (httpx2.HTTPError, ValueError) as error:
                code = error.status.code or 0 if isinstance(error, ApiError) else 500
                if code in (401, 403):
                    raise DetError(f"Kubernetes refuses: {error}; the README of det-kubernetes has a role") from None
                if code < 500 and code != 429:
                    raise
                if not said:
                    say(said := f"the API server of Kubernetes does not answer ({error}); it is waited for")
            if self._over.wait(_PAUSE_SECONDS):
                raise DetError(said)


def _pod(pod: Any) -> Pod:
    status, finished = pod.status, pod.status.phase in ("Succeeded", "Failed")
    states = [each.state for each in status.containerStatuses or () if each.name == AGENT and each.state]
    end = next((state.terminated for state in states if state.terminated), None)
    unplaced = (each for each in status.conditions or () if each.type == "PodScheduled" and each.status == "False")
    why = next((state.waiting for state in states if state.waiting), None) or next(unplaced, None)
    failed = end if end and end.exitCode else status
    leaves = pod.metadata.deletionTimestamp
    began, ended = any(state.running or state.terminated for state in states), bool(end) or (finished and not states)
    overdue = finished or (leaves is not None and leaves < datetime.now(UTC))
    known = pod.metadata.uid, pod.metadata.name, pod.spec.nodeName or ""
    return Pod(*known, began, ended, overdue, _sentence(why) if why else "", _sentence(failed))


def _sentence(said: Any) -> str:
    """Return a reason, and the last line of its message."""
    last = (said.message or "").strip().rpartition("\n")[2]
    return f"{said.reason}: {last}" if last else str(said.reason or "")
