"""Where runs are executed: an agent in each job of a Slurm cluster; nothing is shared with the nodes but the storage."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from det_core.errors import DetError
from det_core.machine import address_for, told_address
from det_driver.engines import AgentCommand, Claim, Granted, Hears, QueueEngine, Site, Standing

from .config import SlurmSettings
from .jobs import ENDED, FAILED, WAITING, Job, answer, cancel, find, lost, submit

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

_DRIVER = """\
#!/bin/bash -l
{setup}
export {variables}
unset DET_ADDRESS DET_BIND_ADDRESS
sbatch --dependency=afterany:$SLURM_JOB_ID {options} < "$0"
{argv}
[ $? -gt 136 ] || scancel --quiet --user=$UID --state=PENDING --name={name}
"""
"""Killed as it may be, with its node or by a limit, there is a job after it, which takes up what has gone on meanwhile."""


class SlurmEngine(QueueEngine):
    """Submits a job for each claim, by the claim's name."""

    has_drivers = True

    def __init__(self, hears: Hears) -> None:
        super().__init__(hears)
        self._jobs: dict[str, Job] = {}
        self._unsure: set[str] = set()  # those whose nodes are lost, which may go on

    @property
    def _settings(self) -> SlurmSettings:
        return self.site.settings if isinstance(self.site.settings, SlurmSettings) else SlurmSettings()

    def find(self) -> dict[str, Granted]:
        before, self._jobs = self._jobs, find(f"{self.site.name}-")
        self._jobs.pop(self._driver, None)
        failed = {name: job for name, job in self._jobs.items() if job.state in FAILED and before.get(name) != job}
        gone = lost(job.nodes for job in failed.values()) if failed else ()
        self._unsure |= {name for name, job in failed.items() if job.state == "NODE_FAIL" or job.nodes in gone}
        for job in failed.values():
            self.note(f"job {job.id} on {job.nodes or 'no node'} is {job.state}: {job.words or job.reason}")
        return {name: self._granted(name, job) for name, job in self._jobs.items()}

    def submit(self, claim: Claim, command: AgentCommand) -> str:
        return submit(*self._job(claim, command))

    def cancel(self, name: str, *, at_once: bool) -> None:
        cancel(name, at_once=at_once)

    def submit_driver(self, site: Site, words: Sequence[str], environ: Mapping[str, str], log: Path) -> str:
        self.site = site
        options = {**self._of_all(), "job-name": self._driver, "ntasks": 1, "chdir": "/", "open-mode": "append"}
        options["output"] = str(log).replace("%", "%%")
        given = ["--no-requeue", *_options(options), *self._settings.driver_args]
        script = _DRIVER.format(
            setup="\n".join(self._settings.setup),
            variables=shlex.join(f"{name}={value}" for name, value in environ.items() if name.startswith("DET_")),
            options=shlex.join(given),
            argv=shlex.join([self._settings.python or sys.executable, *words]),
            name=self._driver,
        )
        if wrong := submit(given, script):
            raise DetError(f"no job for the driver: {wrong}")
        return self._driver

    def driver(self, site: Site) -> Granted:
        self.site = site
        job = find(self._driver).get(self._driver, Job("PENDING"))
        standing = Standing.ENDED if job.state in ENDED else self._granted(self._driver, job).standing
        return Granted(name=self._driver, standing=standing, nodes=1, native=job.id, reason=job.reason)

    def dismiss(self, site: Site, *, at_once: bool) -> None:
        super().dismiss(site, at_once=at_once)
        self.cancel(self._driver, at_once=True)

    def address(self) -> str:
        chosen = f"--partition={self._settings.partition}" if self._settings.partition else "--all"
        nodes = self.patiently(lambda: answer("sinfo", "--Node", "--format=%o", chosen)).split()
        return told_address() or address_for(nodes[0] if nodes else "") or self.site.host

    def _granted(self, name: str, job: Job) -> Granted:
        nodes = int(job.machines)
        gone = dict.fromkeys(range(nodes), name not in self._unsure) if job.state in ENDED else {}
        standing = Standing.WAITING if job.state in WAITING else Standing.RUNNING
        return Granted(name=name, standing=standing, nodes=nodes, native=job.id, reason=job.reason, gone=gone)

    def _job(self, claim: Claim, command: AgentCommand) -> tuple[list[str], str]:
        """Return what `sbatch` is told for a claim: options, and the script."""
        settings, cpus = self._settings, claim.slots * self._settings.cpus_per_slot
        options = {
            **self._of_all(),
            **{name: getattr(settings, name) for name in ("nice", "constraint")},
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
        return ["--no-requeue", *_options(options), *settings.sbatch_args], script

    def _of_all(self) -> dict[str, object]:
        return {name: getattr(self._settings, name) for name in ("partition", "account", "qos")}

    @property
    def _driver(self) -> str:
        return f"{self.site.name}-driver"


def _options(named: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in named.items() if value is not None]
