"""Where runs are executed: an agent in each pod of an Indexed Job; nothing is shared with the pods but the storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from det_core.agent import RunSpec
from det_core.errors import DetError
from det_core.machine import address_for, told_address
from det_driver.engines import AgentCommand, AgentEngine, Claim, Granted, Hears, Site, Standing

from .cluster import Cluster, Job, Pod
from .config import KubernetesSettings
from .objects import FILES, job_of

_SHORTEST_SECONDS, _LONGEST_SECONDS, _MARGIN_SECONDS = 1.0, 10.0, 3.0


class KubernetesEngine(AgentEngine):
    """Creates a Job for each claim, of the claim's name; where the API server is silent, what was known last holds."""

    def __init__(self, hears: Hears) -> None:
        super().__init__(hears)
        self._due: dict[str, tuple[Claim, AgentCommand]] = {}
        self._given: set[str] = set()
        self._jobs: dict[str, Job] = {}  # never changed, but replaced, in one thread at a time
        self._changing, self._giving = threading.Lock(), threading.Lock()
        self._unsure: dict[str, float] = {}  # until when a pod may go on, of whose end no kubelet tells
        self._soon = threading.Event()

    @property
    def _settings(self) -> KubernetesSettings:
        assert isinstance(self.site.settings, KubernetesSettings)
        return self.site.settings

    @cached_property
    def _cluster(self) -> Cluster:
        return Cluster(self._settings, self._closing)

    def open(self, site: Site) -> tuple[RunSpec, ...]:
        specs = super().open(site)
        threading.Thread(target=self._attend, daemon=True, name="det-kubernetes").start()
        return specs

    def claims(self, runs: int, slots: int) -> list[Claim]:
        each = self._settings.slots_per_node or max(slots, 1)
        jobs = -(-runs // max(each // max(slots, 1), 1)) - sum(map(self._comes, self.asked))
        return [Claim(name=self.new_name(), slots=each, nodes=max(-(-slots // each), 1)) for _ in range(jobs)]

    def _comes(self, name: str) -> bool:
        """Tell whether some of a claim's agents are still to come, or to be tried: each pod is placed when there is room."""
        fit = self.probes.fit if self.probes else {}
        there = {agent.node for agent in self.links.all() if agent.leaving or not self.probes or agent.node in fit}
        machines = range(self._jobs.get(name, Job()).machines)
        return any(f"{name}/{k}" not in there and not self.dead(name, k) for k in machines)

    def ask(self, claim: Claim, command: AgentCommand) -> None:
        if claim.name not in self._jobs:
            self._given.add(claim.name)
            self._due[claim.name] = claim, command
        self._soon.set()

    def drop(self, name: str, *, at_once: bool = False) -> None:
        self._due.pop(name, None)
        with self._giving:  # where no agent has come there is nothing to save
            self._cluster.drop(name, at_once=at_once or (self._links is not None and not self.came(name)))

    def look(self) -> Mapping[str, Granted]:
        self._refresh()
        due = {name: Job(machines=claim.nodes) for name, (claim, _) in list(self._due.items())}
        return {name: self._granted(name, job) for name, job in (due | self._jobs).items()}

    def dead(self, name: str, node: int) -> bool:
        if self.came(name):
            self._soon.set()
        job = self._jobs.get(name, Job())
        return job.pods[node].ended if node in job.pods else job.over

    def awaited(self) -> str:
        waiting = [job for name, job in self._jobs.items() if self._granted(name, job).standing is Standing.WAITING]
        return ", ".join(sorted({job.reason for job in waiting if job.reason}))

    def address(self) -> str:
        return told_address() or self._settings.address or address_for(self._cluster.server) or self.site.host

    def directory(self, claim: Claim) -> Path:
        return Path(FILES)

    def python(self) -> tuple[str, ...]:
        return (self._settings.python, *super().python()[1:])

    def _granted(self, name: str, job: Job) -> Granted:
        unended = [pod for pod in job.pods.values() if not pod.ended]
        ended, began = job.over and not unended, any(pod.began for pod in unended)
        standing = Standing.RUNNING if began else Standing.ENDED if ended else Standing.WAITING
        return Granted(name=name, standing=standing, nodes=job.machines, native=name, reason=job.reason)

    def _attend(self) -> None:
        pause = _SHORTEST_SECONDS
        while not self._closing.wait(_SHORTEST_SECONDS):
            self._soon.wait(pause - _SHORTEST_SECONDS)
            self._soon.clear()
            before = self._jobs
            with suppress(DetError):  # the driver ends, or may not ask for now
                self._refresh()
                self._give()
            pause = _SHORTEST_SECONDS if before != self._jobs else min(2 * pause, _LONGEST_SECONDS)

    def _refresh(self) -> None:
        with self._changing:
            before, found = self._jobs, self._cluster.find(self.site.name)
            gone = {name: job._replace(over=True, pods={}) for name, job in before.items() if name not in found}
            for name, job in (found | gone).items():
                was = before.get(name, Job()).pods
                found[name] = job._replace(pods=self._settled(was, job.pods))
                again = any(pod.began for pod in was.values())  # Kueue has taken it back, and would start it anew
                if job.suspended and not job.over and (again or not (job.queue or name in self._given)):
                    self._cluster.drop(name, at_once=False)  # or its driver was killed before there was a Secret
                if job.over and not before.get(name, Job(over=True)).over:
                    words = [
                        f"{pod.name} on {pod.node or 'no node'}: {pod.words}" for pod in job.pods.values() if pod.words
                    ]
                    self._note(job.words and f"the Job {name} has failed: {job.words}", *words)
            self._jobs = found

    def _settled(self, before: Mapping[int, Pod], now: Mapping[int, Pod]) -> dict[int, Pod]:
        """Return the pods, those too that are gone; where no kubelet tells that one has ended, a lease is waited for."""
        pods = {k: pod._replace(overdue=True) for k, pod in before.items()} | dict(now)
        for k, pod in pods.items():
            if pod.overdue and not pod.ended:
                until = self._unsure.setdefault(pod.uid, time.monotonic() + self.site.lease + _MARGIN_SECONDS)
                sure = k not in now and (not pod.node or self._cluster.ready(pod.node))
                pods[k] = pod._replace(ended=sure or time.monotonic() > until)
        return pods

    def _give(self) -> None:
        for name in list(self._due):
            with self._giving:
                if name not in self._due:
                    continue
                claim, command = self._due[name]
                job = job_of(claim, self.site.name, self._settings, command.argv[:-1])
                wrong = self._cluster.give(job, command.start)
                with self._changing:
                    self._jobs = {**self._jobs, name: Job(machines=claim.nodes, over=bool(wrong))}
                self._due.pop(name, None)
            if wrong:
                self._note(wrong)
                self._cluster.drop(name, at_once=True)

    def _note(self, *lines: str) -> None:
        with open(self.log(""), "a") as log:
            log.writelines(f"{line}\n" for line in lines if line)
