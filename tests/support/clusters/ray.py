"""A Ray cluster in network namespaces of this machine, small and without a dashboard.

All of it is gone with the test.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.clusters.hosts import (
    Cluster,
    ip,
    joined,
    kill_all,
    prefix,
    processes,
    why_no_network,
)

SECONDS = 180.0
PORT = 6379
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
ENVIRON = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_raylet_start_wait_time_s": "150",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}


def why_no_ray() -> str:
    """Say why there can be no cluster here, or nothing where there can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray is not installed"
    return (
        "a Ray cluster on hosts of one's own needs root" if os.geteuid() != 0 else why_no_network()
    )


@dataclass
class RayCluster(Cluster):
    """Host 0 is the head.

    It has the resource `head`, the others have the resource `other`, and two CPUs each.
    """

    raylets: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    more: dict[str, str] = field(default_factory=dict)
    """More variables for drivers."""
    jobs: bool = False
    """Whether the head takes jobs."""

    @property
    def address(self) -> str:
        return f"{self.head}:{PORT}"

    @property
    def environ(self) -> dict[str, str]:
        return {**ENVIRON, "RAY_ADDRESS": self.address, **self.more}

    def ask(self, script: str) -> str:
        """Return what a few lines of Python print that are connected to the cluster."""
        begin = (
            f"import ray; ray.init({self.address!r}, log_to_driver=False, logging_level='ERROR',"
            " namespace='det')\n"
        )
        return self.run(sys.executable, "-c", begin + script)

    def start(self, name: str, cpus: int) -> None:
        """Start Ray on a host."""
        k = self.network.names.index(name)
        head = [
            "--head",
            f"--port={PORT}",
            f"--include-dashboard={str(self.jobs).lower()}",
            f"--dashboard-host={name}",
        ]
        where = head if k == 0 else [f"--address={self.address}"]
        ray = [
            *RAY,
            *(
                "start",
                "--block",
                *where,
                f"--node-ip-address={name}",
                f"--num-cpus={cpus}",
                "--num-gpus=0",
            ),
            *(
                "--object-store-memory=80000000",
                f"--temp-dir={self.directory}/{k}",
                "--disable-usage-stats",
            ),
            f'--resources={{"{"other" if k else "head"}": 1000}}',
        ]
        with (self.directory / f"{k}.out").open("wb") as out:
            self.raylets[name] = subprocess.Popen(
                [
                    *prefix(name, "-m", "-u"),
                    *("sh", "-c", f'hostname n{k}; exec "$@"', "ray", *ray),
                ],
                env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | ENVIRON,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def wait_for(self, name: str) -> None:
        """Wait until Ray has said on a host that it runs."""
        out = self.directory / f"{self.network.names.index(name)}.out"
        deadline = time.monotonic() + SECONDS
        while b"Ray runtime started" not in out.read_bytes():
            there = self.raylets[name].poll() is None and time.monotonic() < deadline
            assert there, f"Ray did not start: {out.read_text()[-2000:]}"
            time.sleep(0.1)

    def hide(self, directories: Sequence[Path]) -> None:
        """Put an empty directory in the place of each, on all hosts but the first."""
        self.hidden = directories
        for name in self.network.names[1:]:
            for each in directories:
                there = ["nsenter", "-m", "-t", str(self.raylets[name].pid)]
                subprocess.run(
                    [*there, "mount", "-t", "tmpfs", "none", str(each)], check=True, timeout=SECONDS
                )

    def kill_raylet(self, name: str) -> None:
        """Kill the one process by which Ray has a host."""
        self._kill(name, "raylet")

    def down(self) -> None:
        """Kill the head, and what of Ray is on the others.

        What runs on them goes on, but for the actors.
        """
        for name in self.network.names:
            self.raylets[name].kill()
            self.raylets[name].wait()
            self._kill(name, "raylet", "gcs_server")

    def up(self, cpus_of_the_head: int) -> None:
        """Start Ray on all hosts."""
        head, *others = self.network.names
        self.start(head, cpus_of_the_head)
        self.wait_for(head)
        for name in others:
            self.start(name, 2)
        for name in others:
            self.wait_for(name)
        self.hide(self.hidden)

    def _kill(self, name: str, *commands: str) -> None:
        for pid in processes(name):
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() in commands:
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def ray_cluster(hosts: int, cpus_of_the_head: int, *, jobs: bool = False) -> Iterator[RayCluster]:
    """Make a cluster."""
    # Paths of sockets below it must be short.
    directory = Path(tempfile.mkdtemp(prefix="det-ray-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        network = stack.enter_context(joined(hosts))
        made = RayCluster(network, directory, nodes=network.names[1:], jobs=jobs)
        stack.callback(_end, made)
        # By the default route, Ray finds an address of its host.
        for name in network.names:
            ip("-n", name, "route", "add", "default", "dev", "eth7")
        made.up(cpus_of_the_head)
        yield made


def _end(made: RayCluster) -> None:
    kill_all(made.network)
    for each in made.raylets.values():
        each.kill()
        each.wait()
    kill_all(made.network)  # what they have started since
