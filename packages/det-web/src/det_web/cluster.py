"""/api/v1/about, /api/v1/cluster and /metrics for Prometheus: this machine and its devices."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct, field

from det_core.config import from_json
from det_core.errors import DetError
from det_driver.driver import DriverSettings, waits_for
from det_driver.store import Store, Visible

from .endpoints import ApiRequest, Endpoint
from .shapes import About


class Slot(Struct):
    """A device of a machine, and the experiment that holds it."""

    id: str
    kind: str
    experiment: int | None
    trial: int | None


class Machine(Struct):
    """A machine with its devices."""

    name: str
    slots: list[Slot]


class Waiting(Struct):
    """An experiment that waits for devices: what for, in words, and which others hold devices."""

    experiment: int
    wants: str = field(name="for")
    held_by: list[int]


class Cluster(Struct):
    """This machine, and the experiments that wait for its devices."""

    machines: list[Machine]
    waiting: list[Waiting]


def about(asked: ApiRequest) -> About:
    """Return det's version, the home, the host's name, and who asks."""
    user = asked.user
    return About(
        version("det-driver"),
        str(asked.home),
        socket.gethostname(),
        user and user.name,
        user and str(user.role),
    )


@lru_cache(maxsize=1)
def _devices(home: Path) -> tuple[str, ...]:
    return DriverSettings.detect(os.environ, home=home).devices()


def cluster(asked: ApiRequest) -> Cluster:
    """Return the devices of this machine, what is held of others, and what waits."""
    if not Store.is_at(asked.home):
        return Cluster(_machines(asked.home, {}), [])
    with asked.store() as store:
        held = {device: id for id, devices in store.slots.holders().items() for device in devices}
        waiting = []
        queue = store.slots.queue()
        ids = dict.fromkeys(each.experiment for each in queue.waiting)
        for id, found in store.experiments.rows(ids).items():
            with suppress(DetError):
                wanted = from_json(found.config).resources.slots_per_trial
                why = waits_for(store, id, wanted, queue)
                waiting.append(Waiting(id, why, sorted({*held.values()} - {id})))
    return Cluster(_machines(asked.home, held), waiting)


def _machines(home: Path, held: dict[str, int]) -> list[Machine]:
    """Return this machine, and the machines of engines with a device that is in use."""
    slots = {"": list[Slot]()}
    for name in dict.fromkeys([*_devices(home), *held]):
        machine, _, device = name.rpartition("/")
        slots.setdefault(machine, []).append(
            Slot(device, device.partition(":")[0], held.get(name), None)
        )
    return [Machine(name or socket.gethostname(), found) for name, found in slots.items()]


def prometheus(home: Path, visible: Visible | None = None) -> str:
    """Return the metrics of the visible experiments in Prometheus' text format."""
    lines = [
        *_head("det_experiments", "Experiments by state."),
        *_head("det_trials", "Trials of experiments that are active, by state."),
        *_head(
            "det_experiment_progress", "How much of an experiment that is active is done, 0 to 1."
        ),
        *_head("det_slots", "Devices of this machine that experiments hold."),
        *_head("det_waiting", "Experiments that wait for devices."),
    ]
    if Store.is_at(home):
        with Store.reader(home, visible) as store:
            lines += _values(store)
    order = [line.split()[2] for line in lines if line.startswith("# HELP")]
    lines.sort(
        key=lambda line: order.index(
            line.split()[2] if line.startswith("#") else line.partition("{")[0].split()[0]
        )
    )
    return "\n".join(lines) + "\n"


def _values(store: Store) -> Iterator[str]:
    unread: dict[int, str] = {}
    listed = store.experiments.list(archived=None, unread=unread)
    states = [str(each.experiment.state) for each in listed] + ["UNREADABLE"] * len(unread)
    yield from (
        f'det_experiments{{state="{state}"}} {states.count(state)}'
        for state in dict.fromkeys(states)
    )
    for each in listed:
        if each.experiment.state == "ACTIVE":
            of = f'experiment="{each.experiment.id}",name="{_escaped(each.experiment.name)}"'
            yield from (
                f'det_trials{{{of},state="{state}"}} {count}'
                for state, count in each.trials.items()
            )
            yield f"det_experiment_progress{{{of}}} {each.experiment.progress}"
    yield f"det_slots {sum(map(len, store.slots.holders().values()))}"
    yield f"det_waiting {len(store.slots.waiting())}"


def _head(name: str, says: str) -> tuple[str, str]:
    return f"# HELP {name} {says}", f"# TYPE {name} gauge"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


ENDPOINTS = (
    Endpoint(method="GET", path="/about", does=about, response=About),
    Endpoint(method="GET", path="/cluster", does=cluster, response=Cluster),
)
"""The endpoints about the machine."""
