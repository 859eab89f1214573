"""/api/v1/queue: what waits for slots of this machine, what holds them, and who goes first."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from det_core.hooks import Plugins
from det_driver.driver import SearchSteered, read_event, steer
from det_driver.queue import DEFAULT_PRIORITY, Holding, Request
from det_driver.store import Store

from .endpoints import ApiRequest, Endpoint


class InQueue(Struct):
    """Runs of an experiment that wait for slots, or one that holds them.

    - `user` owns the experiment. It is null where the server does not know one.
    - `task` is what runs instead of a training, such as `notebook`, or empty.
    - `slots` are those that each run needs, or that the run holds: `devices`.
    - `rank` is the priority that counts now: better for what has waited, and for what has waited
      before it ran. `weight` is null for what runs.
    - `seconds` is for how long it has waited or run.
    - `needed_by` is the experiment for which a run is asked to give its slots back.
    """

    experiment: int
    name: str | None
    user: str | None
    task: str
    state: Literal["waiting", "running"]
    runs: int
    slots: int
    priority: int
    rank: int
    weight: float | None
    seconds: float
    devices: tuple[str, ...]
    needed_by: int | None


class Queue(Struct):
    """What waits for slots of this machine, the next one first, and what holds them."""

    waiting: list[InQueue]
    running: list[InQueue]


class Share(Struct):
    """An experiment's place in the queue.

    `priority` 1 goes before 99. `weight` is its share among experiments of one priority.
    `max_slots` is the most that its trials hold at once. It is null where nothing limits them.
    """

    priority: Annotated[int, Meta(ge=1, le=99)] | None = None
    weight: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    max_slots: Annotated[int, Meta(ge=1, le=10**9)] | None = None


class ShareChange(Struct, forbid_unknown_fields=True):
    """A change of an experiment's place in the queue.

    Fields that are left out keep their values. If `max_slots` is null, the limit is removed.
    """

    priority: Annotated[int, Meta(ge=1, le=99)] | None = None
    weight: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    max_slots: Annotated[int, Meta(ge=1, le=10**9)] | UnsetType | None = UNSET


def queue(asked: ApiRequest) -> Queue:
    """Return what waits for slots of this machine, and what holds them."""
    if not Store.is_at(asked.home):
        return Queue([], [])
    owners = asked.owners()
    with asked.store() as store:
        view = store.slots.queue()
        ids = {each.experiment for each in view.waiting}
        ids |= {each.experiment for each in view.holding}
        # A driver keeps its slots while somebody removes the directory by hand.
        named: dict[int, tuple[str | None, str | None, str]] = dict.fromkeys(ids, (None, None, ""))
        for id, found in store.experiments.rows(ids).items():
            named[id] = found.name, owners.get((id, found.created)), found.task
    return Queue(
        [_waiting(each, *named[each.experiment], view.now) for each in view.waiting],
        [_running(each, *named[each.experiment], view.now) for each in view.holding],
    )


def _waiting(each: Request, name: str | None, user: str | None, task: str, now: float) -> InQueue:
    return InQueue(
        experiment=each.experiment,
        name=name,
        user=user,
        task=task,
        state="waiting",
        runs=each.runs,
        slots=each.slots,
        priority=each.priority,
        rank=each.rank(now),
        weight=each.weight,
        seconds=max(0.0, now - each.since),
        devices=(),
        needed_by=None,
    )


def _running(each: Holding, name: str | None, user: str | None, task: str, now: float) -> InQueue:
    return InQueue(
        experiment=each.experiment,
        name=name,
        user=user,
        task=task,
        state="running",
        runs=1,
        slots=len(each.devices),
        priority=each.priority,
        rank=each.protected(now),
        weight=None,
        seconds=max(0.0, now - each.since),
        devices=each.devices,
        needed_by=each.recalled_by,
    )


def share(asked: ApiRequest) -> Share:
    """Return an experiment's priority, weight and limit of slots, as they are now."""
    id = asked.experiment.id
    with asked.store() as store:
        given = store.experiments.config(id).resources
        found = Share(given.priority or DEFAULT_PRIORITY, given.weight, given.max_slots)
        for event in store.journal.read(id, having='"steered"'):
            steered = read_event(id, event)
            if isinstance(steered, SearchSteered):
                found.priority = steered.priority or found.priority
                found.weight = steered.weight or found.weight
                if steered.max_slots is not None:
                    found.max_slots = steered.max_slots or None
    return found


def set_share(asked: ApiRequest) -> Share:
    """Change an experiment's priority, weight or limit of slots, whether it runs or not."""
    given: ShareChange = asked.body
    most = None if given.max_slots is UNSET else given.max_slots or 0
    event = SearchSteered(priority=given.priority, weight=given.weight, max_slots=most)
    id = asked.experiment.id
    if event != SearchSteered():
        with Store(asked.home, visible=asked.visible) as store:
            steer(store, id, event, Plugins.installed())
    return share(asked)


_SHARE = "/experiments/{id}/queue"
ENDPOINTS = (
    Endpoint(method="GET", path="/queue", does=queue, response=Queue),
    Endpoint(method="GET", path=_SHARE, does=share, response=Share),
    Endpoint(method="PATCH", path=_SHARE, does=set_share, response=Share, body=ShareChange),
)
"""The endpoints about the queue."""
