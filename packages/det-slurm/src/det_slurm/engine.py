"""Where runs are executed: an agent in each job of a Slurm cluster; nothing is shared with the nodes but the storage."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from det_core.agent import RunSpec
from det_core.errors import DetError
from det_core.machine import address_for, told_address
from det_driver.engines import AgentCommand, AgentEngine, Claim, Granted, Hears, Site, Standing

from .config import SlurmSettings
from .jobs import ENDED, FAILED, WAITING, Job, answer, cancel, find, lost, submit

_SHORTEST_SECONDS, _LONGEST_SECONDS, _MARGIN_SECONDS = 1.0, 10.0, 3.0
_SCRIPT = """\
#!/bin/bash -l
trap : TERM
{setup}
export DET_SLOTS_TOTAL={slots}{no_gpu}
words=$(srun {tasks} --mpi=none --export=ALL --kill-on-bad-exit=0 sh -c 'exec "$@" $SLURM_PROCID' agent {argv} 2>&1 <<'DET'
{start}DET
) && exit
scontrol update JobId=$SLURM_JOB_ID Comment="$(printf %s "$words" | tail -n 3 | tr '\\n"|' "  /")"
exit 1
"""


class SlurmEngine(AgentEngine):
    """Submits a job for each claim, by the claim's name; where the controller is silent, what was known last holds."""

    def __init__(self, hears: Hears) -> None:
        super().__init__(hears)
        self._due: dict[str, tuple[Claim, AgentCommand]] = {}
        self._jobs: dict[str, Job] = {}  # never changed, but replaced, in one thread at a time
        self._changing, self._submitting = threading.Lock(), threading.Lock()
        self._unsure: dict[str, float] = {}
        self._soon = threading.Event()

    @property
    def _settings(self) -> SlurmSettings:
        return self.site.settings if isinstance(self.site.settings, SlurmSettings) else SlurmSettings()

    def open(self, site: Site) -> tuple[RunSpec, ...]:
        specs = super().open(site)
        threading.Thread(target=self._attend, daemon=True, name="det-slurm").start()
        return specs

    def claims(self, runs: int, slots: int) -> list[Claim]:
        each = self._settings.slots_per_node or max(slots, 1)
        jobs = -(-runs // max(each // max(slots, 1), 1)) - sum(not self.came(name) for name in self.asked)
        return [Claim(name=self.new_name(), slots=each, nodes=max(-(-slots // each), 1)) for _ in range(jobs)]

    def ask(self, claim: Claim, command: AgentCommand) -> None:
        if claim.name not in self._jobs:
            self._due[claim.name] = claim, command
        self._soon.set()

    def drop(self, name: str, *, at_once: bool = False) -> None:
        self._due.pop(name, None)
        with self._submitting:  # where no agent has come there is nothing to save
            cancel(name, at_once=at_once or (self._links is not None and not self.came(name)))

    def look(self) -> Mapping[str, Granted]:
        self._refresh()
        return {name: self._granted(name, job) for name, job in self._jobs.items()}

    def dead(self, name: str, node: int) -> bool:
        if self.came(name):
            self._soon.set()
        job = self._jobs.get(name)
        return job is not None and self._granted(name, job).standing is Standing.ENDED

    def awaited(self) -> str:
        return ", ".join(sorted({job.reason for job in self._jobs.values() if job.state in WAITING and job.reason}))

    def address(self) -> str:
        chosen = f"--partition={self._settings.partition}" if self._settings.partition else "--all"
        nodes = answer("sinfo", "--Node", "--format=%o", chosen, over=self._closing).split()
        return told_address() or address_for(nodes[0] if nodes else "") or self.site.host

    def directory(self, claim: Claim) -> Path:
        return Path(self._settings.directory)

    def python(self) -> tuple[str, ...]:
        return (self._settings.python or super().python()[0], *super().python()[1:])

    def _granted(self, name: str, job: Job) -> Granted:
        """Return what a job is to det: one whose node is lost may go on until its agent has ended its runs."""
        ended = job.state in ENDED and time.monotonic() > self._unsure.get(name, 0.0)
        standing = Standing.WAITING if job.state in WAITING else Standing.ENDED if ended else Standing.RUNNING
        return Granted(name=name, standing=standing, nodes=int(job.machines), native=job.id, reason=job.reason)

    def _attend(self) -> None:
        pause = _SHORTEST_SECONDS
        while not self._closing.wait(_SHORTEST_SECONDS):
            self._soon.wait(pause - _SHORTEST_SECONDS)
            self._soon.clear()
            before = self._jobs
            with suppress(DetError):  # the driver ends
                self._refresh()
                self._submit()
            pause = _SHORTEST_SECONDS if before != self._jobs else min(2 * pause, _LONGEST_SECONDS)

    def _refresh(self) -> None:
        with self._changing:
            before, found = self._jobs, find(f"{self.site.name}-", self._closing)
            for name in before.keys() - found:  # it ended long ago, or a controller that was killed has forgotten it
                forgotten = Job("FORGOTTEN" if self.came(name) else "CANCELLED")
                found[name] = before[name] if before[name].state in ENDED else forgotten
            failed = {name: job for name, job in found.items() if job.state in FAILED and before.get(name) != job}
            gone = lost(job.nodes for job in failed.values()) if failed else ()
            until = time.monotonic() + self.site.lease + _MARGIN_SECONDS
            self._unsure |= {n: until for n, job in failed.items() if job.state == "NODE_FAIL" or job.nodes in gone}
            self._jobs = found
        for job in failed.values():
            self._note(f"job {job.id} on {job.nodes or 'no node'} is {job.state}: {job.words or job.reason}")

    def _submit(self) -> None:
        for name in list(self._due):
            with self._submitting:
                both = self._due.pop(name, None)
                wrong = submit(*self._job(*both)) if both else ""
            if wrong:
                self._note(wrong)
            with self._changing:
                self._jobs = {**self._jobs, name: Job("CANCELLED" if wrong else "PENDING")}

    def _note(self, words: str) -> None:
        with open(self.log(""), "a") as log:
            log.write(f"{words}\n")

    def _job(self, claim: Claim, command: AgentCommand) -> tuple[list[str], str]:
        """Return what `sbatch` is told for a claim: options, and the script."""
        settings, cpus = self._settings, claim.slots * self._settings.cpus_per_slot
        options = {
            **{name: getattr(settings, name) for name in ("partition", "account", "qos", "constraint")},
            **{"mem": settings.memory, "time": settings.time_limit, "job-name": claim.name, "cpus-per-task": cpus},
            **{"gres": settings.gres and f"{settings.gres}:{claim.slots}", "output": "/dev/null", "chdir": "/"},
            **{"nodes": claim.nodes, "ntasks-per-node": 1, "export": "HOME,USER,LOGNAME,SHELL"},
        }
        script = _SCRIPT.format(
            setup="\n".join(settings.setup),
            slots=claim.slots,
            no_gpu="" if settings.gres else " CUDA_VISIBLE_DEVICES=",
            tasks=f"--ntasks={claim.nodes} --cpus-per-task={cpus}",
            argv=shlex.join(command.argv),
            start=command.start.decode(),
        )
        given = (f"--{name}={value}" for name, value in options.items() if value is not None)
        return ["--no-requeue", *given, *settings.sbatch_args], script
