"""Which waiting runs get devices, and which running ones give theirs back.

Pure: a state in, decisions out. All times are in seconds, of one clock.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter

import msgspec

DEFAULT_PRIORITY = 42
AGING_SECONDS = 600.0
"""A request that waits for so long counts as one priority better, and so on without end."""
HALF_LIFE_SECONDS = 6 * 3600.0
"""The age at which the use of a slot counts half in the fair share."""
TURN_SECONDS = 0.3
"""For so long an experiment keeps slots from trial to trial, and goes before others of its rank."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of an experiment that wait for devices.

    - `runs`, `slots`: how many runs, and how many devices each of them needs.
    - `devices`: the devices that it may use, the preferred ones first.
    - `machines`: how many of them, in this order, are on each machine. A run gets devices of one
      machine. If it is empty, all are on one, or a run may use several.
    - `priority`: 1 to 99, the smaller the sooner. It never changes by waiting.
    - `user`: whose experiment it is, empty where that is not known.
    - `weight`: its share among its user's requests of the same priority.
    - `used`, `used_by_user`: the slot-seconds that its experiment, and all experiments of its user,
      have used, with a half-life.
    - `since`: when it began to wait.
    - `turn`: its place among all requests in the order in which they came.
    - `continues`: its experiment has just got devices for other runs that waited with these.
    - `owed`: runs were preempted for it, so their devices go to it.
    - `preempts`: whether it may preempt runs. One whose last run could not use its devices may not.
    """

    experiment: int
    slots: int
    runs: int
    devices: tuple[str, ...]
    machines: tuple[int, ...] = ()
    priority: int = DEFAULT_PRIORITY
    user: str = ""
    weight: float = 1.0
    used: float = 0.0
    used_by_user: float = 0.0
    since: float
    turn: int
    preempts: bool = True
    owed: bool = False
    continues: bool = False

    def rank(self, now: float) -> int:
        """Return the priority that counts in the order, which becomes better by waiting."""
        # The clock of a process that asked lately may be ahead. This is done for each request.
        waited = now - self.since
        return self.priority - int(waited // AGING_SECONDS) if waited > 0 else self.priority

    def by_machine(self) -> list[tuple[str, ...]]:
        """Return the devices of each machine."""
        if not self.machines:
            return [self.devices]
        ends = accumulate(self.machines)
        return [
            self.devices[end - size : end] for size, end in zip(self.machines, ends, strict=True)
        ]


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """A run that holds devices.

    - `priority`: the priority of its experiment now.
    - `gained`: by how much its request had a better rank than its priority when the run started.
    - `since`: when it started.
    - `recalled_by`: the experiment for which it is asked to give its devices back.
    """

    experiment: int
    devices: tuple[str, ...]
    priority: int = DEFAULT_PRIORITY
    gained: int = 0
    since: float
    recalled_by: int | None = None

    def protected(self, now: float) -> int:
        """Return the priority from which on it is not preempted.

        What its request gained by waiting is lost at the same rate while it runs.
        """
        spent = int(max(0.0, now - self.since) // AGING_SECONDS)
        return self.priority - max(0, self.gained - spent)


_priority: Callable[[Request], int] = attrgetter("priority")


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now.

    - `starts`: the runs that get devices, each with its request.
    - `recalls`: the runs to preempt, each with the experiment that needs their devices.
    """

    starts: tuple[tuple[Request, tuple[str, ...]], ...]
    recalls: tuple[tuple[Holding, int], ...]


def in_order(requests: Iterable[Request], now: float) -> list[Request]:
    """Return the requests in the order in which they get devices.

    - First those for which runs were preempted, by priority. Their devices are for nobody else.
    - Then the priority, where each `AGING_SECONDS` of waiting count as one.
    - Then those that continue, so that a few experiments have many devices each. Many experiments
      with one device each would need more processor time.
    - Then, if requests with the same rank are of several users, those of the user with the fewest
      slot-seconds.
    - Then, if the weights of a user's requests with the same rank differ, the fewest slot-seconds
      for the weight.
    - Then the order in which they came.
    """
    return [*_in_order(requests, now)]


def _in_order(requests: Iterable[Request], now: float) -> Iterator[Request]:
    """Yield the requests in order. Those of a rank are sorted when the first of them is needed."""
    owed, ranks = (defaultdict[int, list[Request]](list) for _ in range(2))
    for each in requests:
        if each.owed:
            owed[each.priority].append(each)
        else:
            ranks[each.rank(now)].append(each)
    for equals in (found[rank] for found in (owed, ranks) for rank in sorted(found)):
        if len(equals) > 1:
            weights = defaultdict[str, set[float]](set)
            for each in equals:
                weights[each.user].add(each.weight)
            weighted = {user for user, found in weights.items() if len(found) > 1}
            equals.sort(key=_shares(weighted, several=len(weights) > 1))
        yield from equals


def _shares(
    weighted: set[str], *, several: bool
) -> Callable[[Request], tuple[bool, float, float, int]]:
    """Return the key that sorts requests of one rank.

    It regards weights for the users in `weighted`, and users where there are `several`.
    """

    def place(each: Request) -> tuple[bool, float, float, int]:
        by_user = each.used_by_user if several else 0.0
        share = 0.0
        if each.user in weighted:
            share = each.used / each.weight if each.weight > 0 else math.inf
        return not each.continues, by_user, share, each.turn

    return place


@dataclass(slots=True)
class _Place:
    """The devices of a machine that a request may use, and how many runs get the free ones.

    `back` devices are given back soon by runs that were preempted for the request.
    """

    devices: tuple[str, ...]
    free: list[str] = field(default_factory=list)
    back: int = 0
    runs: int = 0

    def add(self, runs: int, slots: int, usable: int) -> int:
        """Add as many of `runs` as the first `usable` free devices allow. Return how many."""
        added = max(0, min(runs, usable // slots - self.runs))
        self.runs += added
        return added

    def spare(self, slots: int) -> int:
        """Return how many devices its runs leave."""
        return len(self.free) - self.runs * slots + self.back


def decide(requests: Sequence[Request], holdings: Sequence[Holding], now: float) -> Decision:
    """Decide which runs start and which are preempted.

    A request gets those free devices that no earlier one could use. So runs of one slot do not
    starve a run of two. Of several machines, a run gets the fullest one with enough room, so that
    others keep room for large runs. For a run that cannot start, the machine with the most room is
    kept. A request that is not served preempts runs of lower priority, on each machine as few as
    possible, and never of its own priority or a better one.
    """
    in_use = {device for holding in holdings for device in holding.devices}
    pending = defaultdict[int, set[str]](set)
    for holding in holdings:
        if holding.recalled_by is not None:
            pending[holding.recalled_by].update(holding.devices)
    # The runs that may be preempted, those of the lowest priority first, then the youngest.
    left = [(each.protected(now), each) for each in holdings if each.recalled_by is None]
    left.sort(key=lambda pair: (-pair[0], -pair[1].since, pair[1].devices))
    best = min(map(_priority, requests), default=0)
    # Most requests have the same devices, which are looked at once.
    choices = {each.devices for each in {id(r.devices): r for r in requests}.values()}
    starts: list[tuple[Request, tuple[str, ...]]] = []
    recalls: list[tuple[Holding, int]] = []
    # Earlier requests reserve every device that they could use, and claim those that they need.
    reserved, claimed, exhausted = set[str](), set[str](), set[tuple[str, ...]]()
    for request in _in_order(requests, now):
        is_exhausted = request.devices in exhausted
        may_preempt = request.preempts and bool(left) and left[0][0] > request.priority
        if not is_exhausted or may_preempt:
            back = pending.get(request.experiment, set())
            places = [
                _Place(devices, back=len(back.intersection(devices)) if back else 0)
                for devices in request.by_machine()
            ]
            waiting = request.runs
            if not is_exhausted:
                for place in places:
                    place.free = [d for d in place.devices if d not in in_use and d not in claimed]
                    place.free.sort(key=reserved.__contains__)
                waiting -= _start(request, places, reserved, starts)
            # Those with the most room first, for the runs that wait.
            places.sort(key=lambda place: -place.spare(request.slots))
            if not is_exhausted:
                _keep(request, places, waiting, reserved, claimed)
                if all(claimed.issuperset(place.free) for place in places):
                    exhausted.add(request.devices)
            if may_preempt and waiting:
                left = _preempt(request, places, waiting, left, recalls)
        if len(exhausted) == len(choices) and not (left and left[0][0] > best):
            # No later request gets a device.
            break
    return Decision(tuple(starts), tuple(recalls))


def _start(
    request: Request,
    places: Sequence[_Place],
    reserved: set[str],
    starts: list[tuple[Request, tuple[str, ...]]],
) -> int:
    """Place runs, and start those that need no reserved device. Return how many are placed."""
    slots, placed = request.slots, 0
    fullest = sorted(places, key=lambda place: len(place.free))
    for place in fullest:
        unreserved = sum(each not in reserved for each in place.free)
        placed += place.add(request.runs - placed, slots, unreserved)
        starts += [
            (request, tuple(place.free[k * slots : (k + 1) * slots])) for k in range(place.runs)
        ]
    for place in fullest:
        placed += place.add(request.runs - placed, slots, len(place.free))
    return placed


def _keep(
    request: Request, places: Sequence[_Place], waiting: int, reserved: set[str], claimed: set[str]
) -> None:
    """Claim the devices of the runs that are placed, and a machine for each run that waits."""
    kept = [place for place in places if len(place.devices) >= request.slots][:waiting]
    for place in places:
        is_kept = any(place is each for each in kept)
        claimed.update(place.free if is_kept else place.free[: place.runs * request.slots])
        if is_kept or not waiting:
            reserved.update(place.devices)


def _preempt(
    request: Request,
    places: Sequence[_Place],
    waiting: int,
    left: list[tuple[int, Holding]],
    recalls: list[tuple[Holding, int]],
) -> list[tuple[int, Holding]]:
    """Recall runs for those of a request that wait. Return the runs that are left."""
    for place in places:
        if not waiting:
            break
        usable, spare = frozenset(place.devices), place.spare(request.slots)
        victims = _victims(request, waiting, spare, left, usable)
        recalls += [(victim, request.experiment) for victim in victims]
        gone = {victim.devices for victim in victims}
        left = [pair for pair in left if pair[1].devices not in gone]
        room = spare + sum(len(usable.intersection(each.devices)) for each in victims)
        waiting -= min(waiting, room // request.slots)
    return left


def _victims(
    request: Request,
    runs: int,
    spare: int,
    left: Sequence[tuple[int, Holding]],
    usable: frozenset[str],
) -> list[Holding]:
    """Return the runs whose devices a request needs for as many of its `runs` as possible.

    They are the fewest that are enough, and among these the first ones of `left`, whose items have
    the priority from which on a run is not preempted, the greatest first. The request can use the
    devices in `usable`, and `spare` devices are free or given back soon.
    """
    sized = list[tuple[Holding, int]]()
    for protected, each in left:
        if protected <= request.priority:
            break
        if size := len(usable.intersection(each.devices)):
            sized.append((each, size))
    runs = min(runs, (spare + sum(size for _, size in sized)) // request.slots)
    need = runs * request.slots - spare
    # Runs have few sizes, so they are counted by size.
    counts = Counter(size for _, size in sized)
    sizes = sorted(counts, reverse=True)
    fewest, room = 0, 0
    for size in sizes:
        more = min(counts[size], max(0, -(-(need - room) // size)))
        fewest, room = fewest + more, room + more * size
    chosen: list[Holding] = []
    for each, size in sized:
        if len(chosen) == fewest:
            break
        counts[size] -= 1
        # The largest of the others, together with this one, have to be enough.
        wanted, others = fewest - len(chosen) - 1, 0
        for other in sizes:
            more = min(wanted, counts[other])
            wanted, others = wanted - more, others + more * other
        if size + others >= need:
            chosen.append(each)
            need -= size
    return chosen


def used(seconds: float) -> float:
    """Return what a slot that was held for the last `seconds` counts, in slot-seconds."""
    rate = math.log(2) / HALF_LIFE_SECONDS
    return -math.expm1(-rate * max(0.0, seconds)) / rate


def decayed(amount: float, seconds: float) -> float:
    """Return what is left of slot-seconds after further `seconds`."""
    return float(amount * 0.5 ** (max(0.0, seconds) / HALF_LIFE_SECONDS))


def negligible_after(amount: float) -> float:
    """Return the seconds after which less than one is left of so many slot-seconds."""
    return HALF_LIFE_SECONDS * math.log2(max(amount, 1.0))
