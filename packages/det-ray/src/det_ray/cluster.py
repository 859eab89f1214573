"""A Ray cluster, as far as an engine needs it: placement groups by name, and the actors in them."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from contextlib import suppress
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from det_core.agent import Ferry
from det_core.errors import DetError
from det_driver.engines import AgentCommand, Call, Claim

from .config import RaySettings
from .place import Place, place_name

_REACH_SECONDS, _CONNECT_SECONDS, _CALL_SECONDS = 10.0, 90.0, 20.0


class Group(NamedTuple):
    """A claim's placement group: its state in Ray's words, its machines, those whose actors are there, and for what it waits."""

    id: str
    state: str
    machines: int
    there: frozenset[int] = frozenset()
    reason: str = ""


class Cluster:
    """The cluster that the settings name, to which this process is connected as long as it lives."""

    def __init__(self, settings: RaySettings) -> None:
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a thread would, while the process ends
        self._settings = settings
        if not ray.is_initialized():
            self._connect()
        self.own_address: str = ray.util.get_node_ip_address()
        for each in (Place, Ferry):
            ray.cloudpickle.register_pickle_by_value(sys.modules[each.__module__])

    def _connect(self) -> None:
        """Connect, in a thread of its own: in the main one Ray would take the place of what the driver does on SIGTERM."""
        address, failed = self._settings.address, list[Exception]()
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if port.isdigit():
            try:
                socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
            except OSError as error:
                raise DetError(
                    f"no Ray cluster answers at {address} ({error.strerror or error}); name its head in engine.address, "
                    "HOST:6379 on a machine of the cluster, and ray://HOST:10001 elsewhere"
                ) from None

        def connect() -> None:
            try:
                ray.init(address, namespace=self._settings.namespace, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        thread.join(_CONNECT_SECONDS)
        if failed or thread.is_alive():
            said = " ".join(str(failed[0]).split()) if failed else "it is silent"
            raise DetError(f"no Ray cluster can be used at {address}: {said}")

    def groups(self, prefix: str) -> dict[str, Group]:
        """Return the placement groups whose names begin so, by name."""
        names = set(ray.util.list_named_actors())
        found = {}
        for group in ray.util.placement_group_table().values():
            name, machines = group["name"], len(group["bundles"])
            if name.startswith(prefix) and group["state"] != "REMOVED":
                there = frozenset(k for k in range(machines) if place_name(name, k) in names)
                reason = self._reason(group["bundles"][0], machines) if group["state"] == "PENDING" else ""
                found[name] = Group(group["placement_group_id"], group["state"], machines, there, reason)
        return found

    def place(self, claim: Claim, command: AgentCommand) -> None:
        """Ask for a claim's machines, and have an agent on each as soon as they are there."""
        bundle = self._bundle(claim.slots)
        group = placement_group([bundle] * claim.nodes, "STRICT_SPREAD", claim.name, lifetime="detached")
        amounts = dict(bundle)
        usual = {"num_cpus": amounts.pop("CPU", 0), "num_gpus": amounts.pop("GPU", 0)}
        environ = {"DET_SLOTS_TOTAL": str(claim.slots)} | ({} if usual["num_gpus"] else {"CUDA_VISIBLE_DEVICES": ""})
        for node in range(claim.nodes):
            ray.remote(Place).options(
                **usual,
                resources=amounts,
                name=place_name(claim.name, node),
                lifetime="detached",
                max_restarts=0,
                max_concurrency=16,
                runtime_env=self._settings.runtime_env,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, node),
            ).remote(command.argv, command.start, claim.name, node, claim.nodes, environ)

    def calls(self, name: str, node: int) -> Call:
        """Return what calls methods of the actor on a machine of a claim; ValueError where there is none."""
        actor = ray.get_actor(place_name(name, node))

        def call(method: str, *arguments: Any, within: float | None = None) -> Any:
            try:
                return ray.get(getattr(actor, method).remote(*arguments), timeout=within)
            except ActorUnavailableError as error:
                raise ConnectionError(str(error)) from error
            except RayError as error:
                raise LookupError(str(error)) from error

        return call

    def end(self, name: str, node: int, *, at_once: bool) -> bool:
        """Have an agent end; return whether it could be told, as it may be gone, or out of reach."""
        with suppress(OSError, LookupError, ValueError):
            self.calls(name, node)("end", at_once, within=_CALL_SECONDS)
            return True
        return False

    def remove(self, name: str, group: Group) -> None:
        """Give a claim's machines back, and end the actors there; or those that wait for them, which Ray would keep."""
        for node in group.there:
            with suppress(ValueError):
                ray.kill(ray.get_actor(place_name(name, node)))
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group.id))))

    def _bundle(self, slots: int) -> dict[str, float]:
        cores = {"CPU": slots * self._settings.cpus_per_slot} if self._settings.cpus_per_slot else {}
        return {**self._settings.resources, **cores, self._settings.resource: slots}

    def _reason(self, bundle: dict[str, float], machines: int) -> str:
        """Return what of a group that waits the cluster has too little of."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for what, each in bundle.items():
            able = sum(node.get(what, 0) >= each for node in nodes)
            if able < machines:
                most = max((node.get(what, 0) for node in nodes), default=0)
                return f"{able} of the {machines} machines needed have {each:g} {what} (the largest of {len(nodes)} has {most:g})"
        free, there = ray.available_resources(), ray.cluster_resources()
        return ", ".join(f"{free.get(what, 0):g} of {there.get(what, 0):g} {what} are free" for what in bundle)
