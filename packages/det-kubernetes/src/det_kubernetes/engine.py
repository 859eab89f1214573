"""Where runs are executed: an agent in each pod of an Indexed Job; nothing is shared with the pods but the storage."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from det_core.machine import address_for, told_address
from det_driver.engines import AgentCommand, Claim, Granted, QueueEngine

from .cluster import Cluster
from .config import KubernetesSettings
from .objects import FILES, job_of


class KubernetesEngine(QueueEngine):
    """Creates a Job for each claim, of the claim's name."""

    @property
    def _settings(self) -> KubernetesSettings:
        assert isinstance(self.site.settings, KubernetesSettings)
        return self.site.settings

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self._settings)

    def find(self) -> dict[str, Granted]:
        jobs = self._cluster.find(self.site.name)
        for name, job in jobs.items():
            again = any(pod.began for pod in job.pods.values())  # Kueue has taken it back, and would start it anew
            if job.suspended and not job.over and (again or not (job.queue or name in self.mine)):
                self._cluster.drop(name, at_once=False)  # or its driver was killed before there was a Secret
            self.note(job.words, *(pod.said for pod in job.pods.values() if job.over))
        return {name: job.granted(name) for name, job in jobs.items()}

    def submit(self, claim: Claim, command: AgentCommand) -> str:
        job = job_of(claim, self.site.name, self._settings, command.argv[:-1])
        return self._cluster.give(job, command.start)

    def cancel(self, name: str, *, at_once: bool) -> None:
        self._cluster.drop(name, at_once=at_once)

    def address(self) -> str:
        return told_address() or self._settings.address or address_for(self._cluster.server) or self.site.host

    def directory(self, claim: Claim) -> Path:
        return Path(FILES)
