"""Runs trials on a Kubernetes cluster: an agent in each pod of an Indexed Job.

The driver shares nothing with the pods but the storage.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from det_driver.engines import AgentCommand, Allocation, AllocationRequest, QueueEngine
from det_node.machine import address_for, given_address

from .cluster import Cluster
from .config import KubernetesSettings
from .objects import FILES, job_of


class KubernetesEngine(QueueEngine):
    """Creates a Job for each allocation request. The Job has the name of the request."""

    @property
    def _settings(self) -> KubernetesSettings:
        assert isinstance(self.context.settings, KubernetesSettings)
        return self.context.settings

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self._settings)

    def find(self) -> dict[str, Allocation]:
        jobs = self._cluster.find(self.context.name)
        for name, job in jobs.items():
            # Kueue has preempted a suspended Job whose pods have begun, and would start it again.
            # A suspended Job that is neither in a queue nor ours lost its driver before it had a
            # Secret.
            again = any(pod.began for pod in job.pods.values())
            if job.suspended and not job.over and (again or not (job.queue or name in self.mine)):
                self._cluster.drop(name, at_once=False)
            self.note(job.words, *(pod.reason for pod in job.pods.values() if job.over))
        return {name: job.allocation(name) for name, job in jobs.items()}

    def submit(self, request: AllocationRequest, command: AgentCommand) -> str:
        job = job_of(request, self.context.name, self._settings, command.argv[:-1])
        return self._cluster.give(job, command.start)

    def cancel(self, name: str, *, at_once: bool) -> None:
        self._cluster.drop(name, at_once=at_once)

    def address(self) -> str:
        return (
            given_address()
            or self._settings.address
            or address_for(self._cluster.server)
            or self.context.host
        )

    def directory(self, request: AllocationRequest) -> Path:
        return Path(FILES)
