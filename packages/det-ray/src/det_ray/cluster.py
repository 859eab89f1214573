"""The parts of a Ray cluster that an engine needs: placement groups by name, and their actors."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from det_core.errors import DetError
from det_core.support.threads import start_thread
from det_driver.engines import AgentCommand, AllocationRequest, Call
from det_node.agent import TcpRelay

from .config import RaySettings

_REACH_SECONDS, _CONNECT_SECONDS, _CALL_SECONDS = 10.0, 90.0, 20.0


class Group(NamedTuple):
    """The placement group of an allocation request.

    `state` is Ray's word for it. `machines` is the number of nodes. `there` has the numbers of the
    nodes whose actors exist. `reason` says why the group is pending.
    """

    id: str
    state: str
    machines: int
    there: frozenset[int] = frozenset()
    reason: str = ""


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Put the process's handler of SIGTERM back.

    Ray's C++ code replaces it in any thread, calls the earlier one, and aborts the process three
    seconds later. A driver needs more time to pause. Python itself sets handlers in the main thread
    only.
    """
    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.argtypes, put.argtypes = [ctypes.c_int], [ctypes.c_int, ctypes.c_void_p]
    get.restype = put.restype = ctypes.c_void_p
    before = get(signal.SIGTERM)
    try:
        yield
    finally:
        put(signal.SIGTERM, before)


class Cluster:
    """The cluster that the settings name. This process stays connected to it until it ends."""

    def __init__(self, settings: RaySettings) -> None:
        # Otherwise a thread may connect again while the process ends.
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
        self._settings = settings
        if not ray.is_initialized():
            self._connect()
        self.own_address: str = ray.util.get_node_ip_address()
        for each in (Place, TcpRelay):
            ray.cloudpickle.register_pickle_by_value(sys.modules[each.__module__])

    def _connect(self) -> None:
        """Connect in a thread.

        In the main thread, Ray would replace the driver's SIGTERM handler.
        """
        address, failed = self._settings.address, list[BaseException]()
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if port.isdigit():
            try:
                socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
            except OSError as error:
                raise DetError(
                    f"no Ray cluster answers at {address} ({error.strerror or error}); name its"
                    " head in engine.address, HOST:6379 on a machine of the cluster, and"
                    " ray://HOST:10001 elsewhere"
                ) from None

        def connect() -> None:
            try:
                with _sigterm_kept():
                    ray.init(
                        address,
                        namespace=self._settings.namespace,
                        log_to_driver=False,
                        logging_level=logging.ERROR,
                    )
            except Exception as error:
                failed.append(error)

        thread = start_thread(connect, name="det-ray", failed=failed.append)
        thread.join(_CONNECT_SECONDS)
        if failed or thread.is_alive():
            reason = " ".join(str(failed[0]).split()) if failed else "it is silent"
            raise DetError(f"no Ray cluster can be used at {address}: {reason}")

    def groups(self, prefix: str) -> dict[str, Group]:
        """Return, by name, the placement groups whose names begin with `prefix`."""
        names = set(ray.util.list_named_actors())
        found = {}
        for group in ray.util.placement_group_table().values():
            name, machines = group["name"], len(group["bundles"])
            if name.startswith(prefix) and group["state"] != "REMOVED":
                there = frozenset(k for k in range(machines) if place_name(name, k) in names)
                reason = (
                    self._reason(group["bundles"][0], machines)
                    if group["state"] == "PENDING"
                    else ""
                )
                found[name] = Group(
                    group["placement_group_id"], group["state"], machines, there, reason
                )
        return found

    def place(self, request: AllocationRequest, command: AgentCommand) -> None:
        """Request the nodes of an allocation, and an agent on each as soon as Ray grants them."""
        bundle = self._bundle(request.slots)
        group = placement_group(
            [bundle] * request.nodes, "STRICT_SPREAD", request.name, lifetime="detached"
        )
        amounts = dict(bundle)
        usual = {"num_cpus": amounts.pop("CPU", 0), "num_gpus": amounts.pop("GPU", 0)}
        environ = {"DET_SLOTS_TOTAL": str(request.slots)} | (
            {} if usual["num_gpus"] else {"CUDA_VISIBLE_DEVICES": ""}
        )
        for node in range(request.nodes):
            ray.remote(Place).options(
                **usual,
                resources=amounts,
                name=place_name(request.name, node),
                lifetime="detached",
                max_restarts=0,
                max_concurrency=16,
                runtime_env=self._settings.runtime_env,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, node),
            ).remote(command.argv, command.start, request.name, node, request.nodes, environ)

    def calls(self, name: str, node: int) -> Call:
        """Return a function that calls methods of the actor on a node.

        Raises ValueError if there is no actor.
        """
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
        """Ask an agent to end.

        Return whether the request arrived: the agent may be gone or unreachable.
        """
        with suppress(OSError, LookupError, ValueError):
            self.calls(name, node)("end", at_once, within=_CALL_SECONDS)
            return True
        return False

    def remove(self, name: str, group: Group) -> None:
        """Release the nodes of an allocation and kill its actors.

        Pending actors are killed too, because Ray would keep them.
        """
        for node in group.there:
            with suppress(ValueError):
                ray.kill(ray.get_actor(place_name(name, node)))
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group.id))))

    def _bundle(self, slots: int) -> dict[str, float]:
        cores = (
            {"CPU": slots * self._settings.cpus_per_slot} if self._settings.cpus_per_slot else {}
        )
        return {**self._settings.resources, **cores, self._settings.resource: slots}

    def _reason(self, bundle: dict[str, float], machines: int) -> str:
        """Return which resource the cluster has too little of for a pending group."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for what, each in bundle.items():
            able = sum(node.get(what, 0) >= each for node in nodes)
            if able < machines:
                most = max((node.get(what, 0) for node in nodes), default=0)
                return (
                    f"{able} of the {machines} machines needed have {each:g} {what} (the largest of"
                    f" {len(nodes)} has {most:g})"
                )
        free, there = ray.available_resources(), ray.cluster_resources()
        return ", ".join(
            f"{free.get(what, 0):g} of {there.get(what, 0):g} {what} are free" for what in bundle
        )


_LINGERS_SECONDS, _LOOKS_SECONDS = 5.0, 1.0


class Place(TcpRelay):
    """Runs an agent, and watches whether Ray is about to take its node away.

    It is pickled by value, so that the nodes need det-core but not this package. After the agent
    has ended, the actor removes itself, and the last actor of an allocation removes the placement
    group.
    """

    def __init__(
        self,
        argv: tuple[str, ...],
        start: bytes,
        request: str,
        node: int,
        nodes: int,
        own: dict[str, str],
    ) -> None:
        # Other nodes reach this one at this address, unless its administrator has set another.
        super().__init__(
            argv, start, node, {"DET_ADDRESS": ray.util.get_node_ip_address(), **os.environ, **own}
        )
        self._request, self._node, self._nodes = request, node, nodes
        for each in (self._watch, self._outlive):
            threading.Thread(target=each, daemon=True).start()

    def _watch(self) -> None:
        """Terminate the agent when its node is about to be taken away."""
        here, noticed = ray.get_runtime_context().get_node_id(), False
        while self.agent.poll() is None and not noticed:
            time.sleep(_LOOKS_SECONDS)
            if noticed := here in draining():
                self.agent.terminate()

    def _outlive(self) -> None:
        """Wait until the agent has ended and a driver knows its status, and then remove this actor.

        The last actor of an allocation releases its nodes. If the agent was killed, its runs may
        live until its lease ends. The driver then releases the nodes.
        """
        status = self.agent.wait()
        self.known.wait(_LINGERS_SECONDS)
        # The last message about the agent may still be in transit.
        time.sleep(_LOOKS_SECONDS / 2)
        while self._are_there(range(self._node + 1, self._nodes)):
            time.sleep(_LOOKS_SECONDS)
        if (status == 0 or not self.stream) and not self._are_there(range(self._node)):
            remove_placement_group(get_current_placement_group())
        ray.kill(ray.get_runtime_context().current_actor)

    def _are_there(self, nodes: Any) -> bool:
        there = set(ray.util.list_named_actors())
        return any(place_name(self._request, node) in there for node in nodes)


def place_name(request: str, node: int) -> str:
    """Return the name of the actor on a node of an allocation."""
    return f"{request}/{node}"


def draining() -> set[str]:
    """Return the ids of the nodes that Ray is about to take away.

    Ray 2.60 tells only its own libraries. If a later version stops doing that, nodes are lost
    without notice, and trials lose what they have not saved.
    """
    with suppress(ImportError, AttributeError):
        from ray._private.state import state

        return set(state.get_draining_nodes())
    return set()
