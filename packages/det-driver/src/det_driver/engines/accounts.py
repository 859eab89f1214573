"""Runs on this host as the system user who owns the experiment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from det_node.agent import AgentHello, RunSpec

from .base import Node
from .ssh import SshEngine


class AccountEngine(SshEngine):
    """Starts one agent on this host, as another user, as if that user were another machine.

    The agent and the runs share no directory with the driver. As the code of runs can change what
    their agent says, only their numbers and devices are taken from it by the next driver.
    """

    @property
    def hosts(self) -> Sequence[str]:
        return (os.uname().nodename,)

    def reach(self, host: str, argv: Sequence[str]) -> Sequence[str]:
        return argv

    def options(self) -> dict[str, Any]:
        assert self.context.account
        return self.context.account.options()

    def address(self) -> str:
        return "127.0.0.1"

    def node(self, here: AgentHello) -> Node:
        # The driver knows the devices of this host.
        return Node(f"{here.name}/{here.node}")

    def lease_key(self, device: str) -> str:
        return device

    def adopt(self, node: str, spec: RunSpec) -> RunSpec:
        # A run that is not open is ended as soon as the driver hears of it.
        logs, events = self.context.runs.get(spec.run_id, (self.context.directory / "ended", None))
        free = {*spec.devices} <= {*self.context.devices}
        return RunSpec(
            run_id=spec.run_id,
            entrypoint="",
            trial_class=True,
            code_dir=logs,
            log_dir=logs,
            variables={"DET_TENSORBOARD_DIR": str(events)} if events else {},
            slots=spec.slots if free else (),
            devices=spec.devices if free else (),
            node=node,
        )
