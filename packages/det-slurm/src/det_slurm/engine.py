"""Runs trials in jobs of a Slurm cluster: an agent on each node of a job.

The driver shares nothing with the nodes but the storage.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from det_core.errors import DetError
from det_driver.engines import (
    AgentCommand,
    Allocation,
    AllocationRequest,
    AllocationState,
    EngineContext,
    OnEvent,
    QueueEngine,
)
from det_node.machine import address_for, given_address

from .config import SlurmSettings
from .jobs import ENDED, FAILED, WAITING, Job, cancel, find, lost, query, submit

_SCRIPT = """\
#!/bin/bash -l
trap : TERM
{setup}
export DET_SLOTS_TOTAL={slots}{no_gpu}
words=$(srun {tasks} --mpi=none --export=ALL --kill-on-bad-exit=0 \
sh -c 'exec "$@" $SLURM_PROCID' agent {argv} 2>&1 <<'DET'
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
"""The script of a driver's job.

It submits its successor first, and cancels it if the driver ends by itself. If the driver is
killed, with its node or by a limit, the successor continues and finds the runs that still live.
"""


class SlurmEngine(QueueEngine):
    """Submits a job for each allocation request. The job has the name of the request."""

    has_drivers = True

    def __init__(self, on_event: OnEvent) -> None:
        super().__init__(on_event)
        self._jobs: dict[str, Job] = {}
        # Jobs whose nodes are lost. They may still run.
        self._unsure: set[str] = set()

    @property
    def _settings(self) -> SlurmSettings:
        return (
            self.context.settings
            if isinstance(self.context.settings, SlurmSettings)
            else SlurmSettings()
        )

    def find(self) -> dict[str, Allocation]:
        before, self._jobs = self._jobs, find(f"{self.context.name}-")
        self._jobs.pop(self._driver, None)
        failed = {
            name: job
            for name, job in self._jobs.items()
            if job.state in FAILED and before.get(name) != job
        }
        gone = lost(job.nodes for job in failed.values()) if failed else ()
        self._unsure |= {
            name for name, job in failed.items() if job.state == "NODE_FAIL" or job.nodes in gone
        }
        for job in failed.values():
            self.note(
                f"job {job.id} on {job.nodes or 'no node'} is {job.state}:"
                f" {job.words or job.reason}"
            )
        return {name: self._allocation(name, job) for name, job in self._jobs.items()}

    def submit(self, request: AllocationRequest, command: AgentCommand) -> str:
        return submit(*self._job(request, command))

    def cancel(self, name: str, *, at_once: bool) -> None:
        cancel(name, at_once=at_once)

    def submit_driver(
        self, context: EngineContext, words: Sequence[str], environ: Mapping[str, str], log: Path
    ) -> str:
        self.context = context
        options = {
            **self._of_all(),
            "job-name": self._driver,
            "ntasks": 1,
            "chdir": "/",
            "open-mode": "append",
        }
        options["output"] = str(log).replace("%", "%%")
        given = ["--no-requeue", *_options(options), *self._settings.driver_args]
        script = _DRIVER.format(
            setup="\n".join(self._settings.setup),
            variables=shlex.join(
                f"{name}={value}" for name, value in environ.items() if name.startswith("DET_")
            ),
            options=shlex.join(given),
            argv=shlex.join([self._settings.python or sys.executable, *words]),
            name=self._driver,
        )
        if wrong := submit(given, script):
            raise DetError(f"no job for the driver: {wrong}")
        return self._driver

    def driver(self, context: EngineContext) -> Allocation:
        self.context = context
        job = find(self._driver).get(self._driver, Job("PENDING"))
        state = (
            AllocationState.ENDED
            if job.state in ENDED
            else self._allocation(self._driver, job).state
        )
        return Allocation(name=self._driver, state=state, nodes=1, native=job.id, reason=job.reason)

    def stop_detached(self, context: EngineContext, *, at_once: bool) -> bool:
        stopped = super().stop_detached(context, at_once=at_once)
        self.cancel(self._driver, at_once=True)
        return stopped

    def address(self) -> str:
        chosen = f"--partition={self._settings.partition}" if self._settings.partition else "--all"
        nodes = self.patiently(lambda: query("sinfo", "--Node", "--format=%o", chosen)).split()
        return given_address() or address_for(nodes[0] if nodes else "") or self.context.host

    def _allocation(self, name: str, job: Job) -> Allocation:
        nodes = int(job.machines)
        gone = dict.fromkeys(range(nodes), name not in self._unsure) if job.state in ENDED else {}
        state = AllocationState.WAITING if job.state in WAITING else AllocationState.RUNNING
        return Allocation(
            name=name, state=state, nodes=nodes, native=job.id, reason=job.reason, gone=gone
        )

    def _job(self, request: AllocationRequest, command: AgentCommand) -> tuple[list[str], str]:
        """Return the options and the script that `sbatch` gets for an allocation request."""
        settings, cpus = self._settings, request.slots * self._settings.cpus_per_slot
        options = {
            **self._of_all(),
            **{name: getattr(settings, name) for name in ("nice", "constraint")},
            **{
                "mem": settings.memory,
                "time": settings.time_limit,
                "job-name": request.name,
                "cpus-per-task": cpus,
            },
            **{
                "gres": settings.gres and f"{settings.gres}:{request.slots}",
                "output": "/dev/null",
                "chdir": "/",
            },
            **{"nodes": request.nodes, "ntasks-per-node": 1, "export": "HOME,USER,LOGNAME,SHELL"},
        }
        script = _SCRIPT.format(
            setup="\n".join(settings.setup),
            slots=request.slots,
            no_gpu="" if settings.gres else " CUDA_VISIBLE_DEVICES=",
            tasks=f"--ntasks={request.nodes} --cpus-per-task={cpus}",
            argv=shlex.join(command.argv),
            start=command.start.decode(),
        )
        return ["--no-requeue", *_options(options), *settings.sbatch_args], script

    def _of_all(self) -> dict[str, object]:
        return {name: getattr(self._settings, name) for name in ("partition", "account", "qos")}

    @property
    def _driver(self) -> str:
        return f"{self.context.name}-driver"


def _options(named: Mapping[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in named.items() if value is not None]
