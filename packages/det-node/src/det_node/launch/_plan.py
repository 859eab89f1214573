"""What to launch, and the run of each rank."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from det_core.errors import DetError
from det_core.ranks.backend import rank_variables
from det_core.ranks.launcher import Launcher, Layout, Place
from det_core.support.origin import THREADS
from det_core.train.environ import WorkerEnv

from ..agent import RunSpec
from ..machine import gpus
from ._hosts import SSH, Host, address_of_this, addresses, ranks_on

if TYPE_CHECKING:
    from ._agents import HostAgent

START_SECONDS = 600.0
# Variables that describe the user and the place of the launcher. Other hosts keep their own.
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


class _OfHost(NamedTuple):
    """What the ranks of one host share. `gpus` are those that they divide among them."""

    variables: Mapping[str, str]
    defaults: Mapping[str, str]
    gpus: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to launch, and how. `environ` is the launcher's environment, which the ranks share.

    Ranks must meet `start_timeout` seconds after the start. Where it is None, they must meet
    START_SECONDS after the first rank has connected. With `all_gpus`, every rank sees all GPUs of
    its host.
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
        """Within how many seconds the ranks must meet."""
        return self.start_timeout or START_SECONDS

    def layout(self, ports: Sequence[Sequence[int]]) -> Layout:
        """Return the place of each rank, with a port that its host has reserved."""
        named = addresses(self.hosts, self.chief_ip)
        places = [
            Place(
                ranks=ranks,
                host=named[ranks.cross_rank],
                port=ports[ranks.cross_rank][ranks.local_rank],
            )
            for ranks in ranks_on(self.hosts)
        ]
        here, objects = address_of_this(self.hosts, named), ports[0][-1]
        return Layout(places=places, here=here, start_timeout=self.patience, objects=objects)

    def towards(self, n: int) -> str | None:
        """Return the address of another host than the host n."""
        named = addresses(self.hosts, self.chief_ip)
        return next((address for other, address in enumerate(named) if other != n), None)

    def specs(
        self,
        launcher: Launcher,
        layout: Layout,
        variables: Sequence[Mapping[str, str]],
        agents: Sequence[HostAgent],
    ) -> list[tuple[HostAgent, RunSpec]]:
        """Return the run of each rank, and the agent of its host."""
        if len(variables) != layout.size:
            raise DetError(
                f"the launcher {type(launcher).__name__} gives the variables of {len(variables)}"
                f" ranks for {layout.size}"
            )
        shared = {
            "DET_CHIEF_IP": layout.places[0].host,
            "DET_CHIEF_PORT": str(layout.objects),
            "DET_RANKS_KEY": secrets.token_hex(32),
        }
        of_hosts = [self._of_host(launcher, agent) for agent in agents]
        specs = []
        for place, own in zip(layout.places, variables, strict=True):
            ranks = place.ranks
            of_host = of_hosts[ranks.cross_rank]
            devices = of_host.gpus
            # Where there are fewer GPUs than ranks, ranks share them.
            device = (
                {"CUDA_VISIBLE_DEVICES": devices[ranks.local_rank % len(devices)]}
                if devices
                else {}
            )
            spec = RunSpec(
                run_id=ranks.rank,
                entrypoint=tuple(self.argv),
                trial_class=False,
                code_dir=self.cwd,
                log_dir=self.cwd,
                foreground=True,
                variables={**of_host.variables, **device, **rank_variables(ranks), **shared, **own},
                defaults=of_host.defaults,
                port=launcher.port(layout, ranks.rank) if layout.size > 1 else None,
            )
            specs.append((agents[ranks.cross_rank], spec))
        return specs

    def _of_host(self, launcher: Launcher, agent: HostAgent) -> _OfHost:
        """Return what the ranks of a host share.

        Other hosts than the launcher's keep variables of their own.
        """
        assert agent.here is not None
        variables, ids = dict(self.environ), agent.here.gpus
        if not agent.host.here:
            listed = self._listed()
            # This host may have GPUs where the driver's host has none.
            chosen = listed["cuda" if ids else "cpu"]
            left_out = {*listed["cpu"], *listed["cuda"]}
            variables = {
                n: value for n, value in variables.items() if not _stays(n) and n not in left_out
            } | chosen
        if "CUDA_VISIBLE_DEVICES" in variables:
            ids = gpus(variables)
        defaults = {"PYTHONUNBUFFERED": "1"}
        if agent.host.slots > 1:
            defaults |= dict.fromkeys(THREADS, str(max(1, agent.here.cores // agent.host.slots)))
        if agent.reserved.interface:
            defaults |= dict.fromkeys(launcher.interface_variables, agent.reserved.interface)
        return _OfHost(variables, defaults, () if self.all_gpus else ids)

    def _listed(self) -> dict[str, dict[str, str]]:
        """Return the variables that the run's configuration lists for hosts without and with GPUs.

        Det's own variables are left out.
        """
        run = WorkerEnv.read(self.environ)
        if run is None:
            return {"cpu": {}, "cuda": {}}
        own, listed = run.variables(), run.config.environment.environment_variables
        found = {
            kind: dict(each.partition("=")[::2] for each in getattr(listed, kind))
            for kind in ("cpu", "cuda")
        }
        return {
            kind: {n: value for n, value in each.items() if n not in own}
            for kind, each in found.items()
        }


def _stays(name: str) -> bool:
    return name in _STAYS or name.startswith(_STAYS_TOO)
