"""What is to be launched, what each host is told of it, and what its ranks then run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from ..backend import rank_variables
from ..environ import WorkerEnv
from ..errors import DetError
from ..launcher import Launcher, Layout, Place
from ..machine import gpus, interface_towards
from ._group import Command
from ._hosts import SSH, Host, address_of_this, addresses, ranks_on

START_SECONDS = 600.0
# What belongs to the person and the place where the launcher runs, and not to what is launched elsewhere.
_STAYS = {
    *(
        "CUDA_VISIBLE_DEVICES",
        "DET_ADDRESS",
        "DISPLAY",
        "HOME",
        "HOSTNAME",
        "LOGNAME",
        "MAIL",
        "OLDPWD",
        "PWD",
        "SHELL",
        "SHLVL",
    ),
    *("TERM", "TMPDIR", "USER", "_"),
}
_STAYS_TOO = ("DBUS_", "SSH_", "XDG_")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to launch, and how. `environ` is the environment that the ranks share, the launcher's own.

    Ranks must meet `start_timeout` seconds after the start; where it is None, START_SECONDS after the first of them came.
    `all_gpus` lets every rank see all of its host's.
    """

    argv: Sequence[str]
    hosts: Sequence[Host]
    environ: Mapping[str, str]
    cwd: Path
    agent: str = SSH
    chief_ip: str | None = None
    port: int | None = None
    start_timeout: float | None = None
    log_dir: Path | None = None
    prefix: bool = True
    all_gpus: bool = False

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return sum(host.slots for host in self.hosts)

    @property
    def patience(self) -> float:
        """In how many seconds the ranks must meet."""
        return self.start_timeout or START_SECONDS

    def layout(self, ports: Sequence[Sequence[int]]) -> Layout:
        """Return where each rank is to be, with the ports that each host keeps."""
        named = addresses(self.hosts, self.chief_ip)
        places = [
            Place(ranks=ranks, host=named[ranks.cross_rank], port=ports[ranks.cross_rank][ranks.local_rank])
            for ranks in ranks_on(self.hosts)
        ]
        here, objects = address_of_this(self.hosts, named), ports[0][-1]
        return Layout(places=places, here=here, start_timeout=self.patience, objects=objects)

    def orders(
        self, launcher: Launcher, layout: Layout, variables: Sequence[Mapping[str, str]]
    ) -> list[dict[str, Any]]:
        """Return what each host is told: what all of its ranks share, and what each has of its own."""
        if len(variables) != layout.size:
            raise DetError(
                f"the launcher {type(launcher).__name__} gives the variables of {len(variables)} ranks for {layout.size}"
            )
        shared = {
            "DET_CHIEF_IP": layout.places[0].host,
            "DET_CHIEF_PORT": str(layout.objects),
            "DET_RANKS_KEY": secrets.token_hex(32),
        }
        orders = [self._shared(launcher, layout, n) for n in range(len(self.hosts))]
        for place, own in zip(layout.places, variables, strict=True):
            port = launcher.port(layout, place.ranks.rank) if layout.size > 1 else None
            env = {**rank_variables(place.ranks), **shared, **own}
            orders[place.ranks.cross_rank]["ranks"].append({"rank": place.ranks.rank, "port": port, "env": env})
        return orders

    def _shared(self, launcher: Launcher, layout: Layout, n: int) -> dict[str, Any]:
        here = self.hosts[n].here
        return {
            "argv": list(self.argv),
            "cwd": str(self.cwd),
            "env": {name: value for name, value in self.environ.items() if here or not _stays(name)},
            "merge": not here,
            "gpus": not self.all_gpus,
            "listed": self._listed(),
            "interface_variables": launcher.interface_variables,
            "towards": next((place.host for place in layout.places if place.ranks.cross_rank != n), None),
            "ranks": [],
        }

    def _listed(self) -> dict[str, dict[str, str]]:
        """Return the variables of the run's configuration for hosts with GPUs and for those without, but det's own."""
        run = WorkerEnv.read(self.environ)
        if run is None:
            return {"cpu": {}, "cuda": {}}
        own, listed = run.variables(), run.config.environment.environment_variables
        found = {kind: dict(each.partition("=")[::2] for each in getattr(listed, kind)) for kind in ("cpu", "cuda")}
        return {kind: {n: value for n, value in each.items() if n not in own} for kind, each in found.items()}


def _stays(name: str) -> bool:
    return name in _STAYS or name.startswith(_STAYS_TOO)


def commands(order: Mapping[str, Any], environ: Mapping[str, str], outputs: Sequence[int]) -> list[Command]:
    """Return the commands of an order, each with its output; on a host that is not the launcher's, `environ` is its own."""
    base, listed = order["env"], order["listed"]
    if order["merge"]:  # this host may have GPUs, and that of the driver none
        sent = {name: value for name, value in base.items() if name not in {*listed["cpu"], *listed["cuda"]}}
        base = {**environ, **sent, **listed["cuda" if gpus({**environ, **sent}) else "cpu"]}
    ranks, ids = order["ranks"], gpus(base) if order["gpus"] else ()
    devices = cycle(
        [{"CUDA_VISIBLE_DEVICES": id} for id in ids] or [{}]
    )  # where there are fewer than ranks, some share one
    shared = {"PYTHONUNBUFFERED": "1"}
    if len(ranks) > 1:
        shared["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // len(ranks)))
    if order["towards"] and order["interface_variables"] and (found := interface_towards(order["towards"])):
        shared |= dict.fromkeys(order["interface_variables"], found)
    return [
        Command(
            argv=order["argv"],
            env={**shared, **base, **device, **rank["env"]},
            cwd=Path(order["cwd"]),
            output=output,
            leash=True,
        )
        for rank, output, device in zip(ranks, outputs, devices, strict=False)
    ]


def cannot_start(argv: Sequence[str], cwd: str | Path, error: OSError) -> DetError:
    """Return the mistake that a command is which cannot be started."""
    here = os.uname().nodename
    if not Path(cwd).is_dir():
        return DetError(f"there is no directory {cwd} on {here}; the code must be there on every host")
    hint = f"write: python3 {argv[0]}" if argv[0].endswith(".py") else "see PATH"
    return DetError(f"cannot run {argv[0]!r} on {here}: {error.strerror}; {hint}")
