"""A Slurm cluster in network namespaces of this machine.

The controller and nodes share nothing but what a test gives them.

No systemd, cgroups, slurmdbd or anything outside of one directory; all of it is gone with the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.clusters.hosts import Cluster, joined, kill_all, prefix, why_no_network

COMMANDS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "nsenter": "util-linux",
}
BOOTED = "/proc/sys/kernel/random/boot_id"
LOGIN = [Path.home() / name for name in (".bash_profile", ".bash_login", ".profile", ".bashrc")]
"""What a login shell of a job would read.

A person's, which may be slow, and may be killed with the test while it has a lock.
"""
SECONDS = 30.0
CONF = """\
ClusterName=det
SlurmctldHost=ctl({addresses[0]})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.sock
CryptoType=crypto/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=300
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
"""


def why_no_slurm() -> str:
    """Say why there can be no cluster here, or nothing where there can."""
    if os.geteuid() != 0:
        return "a Slurm cluster of one's own needs root"
    missing = sorted(
        {package for command, package in COMMANDS.items() if shutil.which(command) is None}
    )
    return (
        f"Slurm is not installed (packages {', '.join(missing)})" if missing else why_no_network()
    )


@dataclass
class SlurmCluster(Cluster):
    """`nodes` have two CPUs each.

    Jobs of the partition `high` take nodes away from those of `low`, the default.
    """

    mounting: str = ""
    """A command by which each node mounts something of its own."""
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.directory / "slurm.conf")}

    def jobs(self, states: str = "all") -> dict[str, tuple[str, str]]:
        """Return the state and the node of each job, by its name."""
        listed = self.run("squeue", "-h", "-t", states, "-o", "%j|%T|%N").splitlines()
        return {name: (state, node) for name, state, node in (line.split("|") for line in listed)}

    def booted(self, name: str) -> Path:
        """Return a file by which a node is a machine of its own that was started by itself."""
        path = self.directory / f"{name}.boot"
        path.write_text(f"{uuid.uuid4()}\n")
        return path

    def start(self, name: str) -> None:
        """Start a daemon: `ctl`, or that of a node."""
        k = 0 if name == "ctl" else 1 + self.nodes.index(name)
        hide = "".join(f"mount -t tmpfs none {each}; " for each in self.hidden) if k else ""
        hide += f"{self.mounting}; " if k and self.mounting else ""
        hide += f"mount --bind {self.booted(name)} {BOOTED}; " if k else ""
        hide += "".join(f"mount --bind /dev/null {each}; " for each in LOGIN if each.exists())
        script = f"hostname {name}; {hide}exec {'slurmd' if k else 'slurmctld'} -D"
        with (self.directory / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(
                [*prefix(self.network.names[k], "-m", "-u"), "sh", "-c", script],
                env=os.environ | self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        self.daemons[name].kill()
        self.daemons.pop(name).wait()

    def wait_for_nodes(self) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            done = self.execute("sinfo", "-h", "-N", "-o", "%N|%T", "-p", "low", seconds=SECONDS)
            if sorted(done.stdout.split()) == [f"{node}|idle" for node in self.nodes]:
                return
            assert time.monotonic() < deadline, (
                f"no cluster came up: {done.stdout}{done.stderr}{self._logs()}"
            )
            time.sleep(0.1)

    def _logs(self) -> str:
        return "".join(
            f"\n{path.name}: {path.read_text()[-800:]}"
            for path in self.directory.glob("*.*")
            if path.suffix in (".out", ".log")
        )


@contextmanager
def slurm_cluster(
    directory: Path, nodes: int, hidden: Sequence[Path] = (), mounting: str = ""
) -> Iterator[SlurmCluster]:
    """Make a cluster in a directory.

    In the place of each of `hidden`, nodes have an empty one of their own.
    """
    directory.mkdir(mode=0o755)
    names = [f"n{k + 1}" for k in range(nodes)]
    with ExitStack() as stack:
        network = stack.enter_context(joined(nodes + 1))
        made = SlurmCluster(network, directory, hidden, names, mounting)
        stack.callback(_end, made)
        (directory / "state").mkdir()
        lines = [CONF.format(addresses=network.names, dir=directory)]
        for name, address in zip(names, network.names[1:], strict=True):
            (directory / f"spool-{name}").mkdir()
            lines.append(
                f"NodeName={name} NodeAddr={address} NodeHostname={name} CPUs=2 RealMemory=2000"
                " State=UNKNOWN\n"
            )
        usual = f"Nodes={','.join(names)} MaxTime=INFINITE State=UP"
        lines.append(
            f"PartitionName=low {usual} Default=YES PriorityTier=1 GraceTime=20"
            " PreemptMode=REQUEUE\n"
        )
        lines.append(f"PartitionName=high {usual} PriorityTier=10 PreemptMode=OFF\n")
        (directory / "slurm.conf").write_text("".join(lines))
        (directory / "munge.key").write_bytes(os.urandom(128))
        (directory / "munge.key").chmod(0o400)
        made.daemons["munged"] = subprocess.Popen(
            [
                *(
                    "munged",
                    "--foreground",
                    "--force",
                    f"--key-file={directory}/munge.key",
                    f"--socket={directory}/munge.sock",
                ),
                *(
                    f"--pid-file={directory}/munged.pid",
                    f"--log-file={directory}/munged.log",
                    f"--seed-file={directory}/munged.seed",
                ),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        made.start("ctl")
        for name in names:
            made.start(name)
        made.wait_for_nodes()
        yield made


def _end(made: SlurmCluster) -> None:
    for daemon in made.daemons.values():
        daemon.kill()
        daemon.wait()
    kill_all(made.network)  # jobs, and what supervises them
