"""The queue for slots decides as a slow and plain reference does, and nothing starves."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from det_driver.queue import (
    AGING_SECONDS,
    HALF_LIFE_SECONDS,
    Decision,
    Holding,
    Request,
    decayed,
    decide,
    in_order,
    used,
)

NOW = 100 * AGING_SECONDS
MACHINE = tuple(f"cpu:{k}" for k in range(6))


def request(turn: int, **changes: object) -> Request:
    made = Request(experiment=turn, slots=1, runs=1, devices=MACHINE, since=NOW, turn=turn)
    return replace(made, **changes)


def holding(*devices: str, **changes: object) -> Holding:
    made = Holding(experiment=99, devices=devices, since=NOW)
    return replace(made, **changes)


# The reference


def goes_before(one: Request, other: Request, everything: list[Request]) -> bool:
    """Say whether a request goes before another one, in the words of the documentation."""
    aged = {each.turn: each.priority - (NOW - each.since) // AGING_SECONDS for each in everything}
    if aged[one.turn] != aged[other.turn]:
        return aged[one.turn] < aged[other.turn]
    if one.continues != other.continues:
        return one.continues
    equals = [each for each in everything if aged[each.turn] == aged[one.turn]]
    if any(each.user != one.user for each in equals) and one.used_by_user != other.used_by_user:
        return one.used_by_user < other.used_by_user
    shares = [
        each.used / each.weight
        if any(e.user == each.user and e.weight != each.weight for e in equals)
        else 0.0
        for each in (one, other)
    ]
    return shares[0] < shares[1] if shares[0] != shares[1] else one.turn < other.turn


def worth(each: Holding) -> float:
    return min(each.priority, each.priority - each.gained + (NOW - each.since) // AGING_SECONDS)


def cheapest(
    weaker: list[Holding], usable: tuple[str, ...], slots: int, room: int, waiting: int
) -> tuple[Holding, ...]:
    """Return the fewest runs whose devices are enough for as many of those that wait as possible."""
    for runs in range(waiting, 0, -1):
        if room >= runs * slots:
            break
        for number in range(1, len(weaker) + 1):
            for chosen in combinations(weaker, number):
                size = sum(len({*one.devices} & {*usable}) for one in chosen)
                if room + size >= runs * slots:
                    return chosen
    return ()


def plainly(requests: list[Request], holdings: list[Holding]) -> Decision:
    """Decide by trying everything."""
    queue: list[Request] = []
    while len(queue) < len(requests):
        rest = [each for each in requests if each not in queue]
        queue += [
            each
            for each in rest
            if all(each is other or goes_before(each, other, requests) for other in rest)
        ]
    starts, recalls = [], []
    claimed: set[str] = set()
    reserved: set[str] = set()
    held = {device for one in holdings for device in one.devices}
    for each in queue:
        sizes, parts = each.machines or (len(each.devices),), []
        for k, size in enumerate(sizes):
            at = sum(sizes[:k])
            parts.append(each.devices[at : at + size])
        free = []
        for part in parts:
            there = [device for device in part if device not in held | claimed]
            free.append(
                [d for d in there if d not in reserved] + [d for d in there if d in reserved]
            )
        # The runs that each machine gets, one after the other: the fullest machine first, and
        # reserved devices last.
        got = [0 for _ in parts]
        for may_start in (True, False):
            for k in sorted(range(len(parts)), key=lambda k: len(free[k])):
                while sum(got) < each.runs:
                    more = tuple(free[k][got[k] * each.slots : (got[k] + 1) * each.slots])
                    if len(more) < each.slots or (may_start and not reserved.isdisjoint(more)):
                        break
                    if may_start:
                        starts.append((each, more))
                    got[k] += 1
        back = {d for one in holdings if one.recalled_by == each.experiment for d in one.devices}
        room = [
            len(free[k]) - got[k] * each.slots + len(back.intersection(part))
            for k, part in enumerate(parts)
        ]
        waiting = each.runs - sum(got)
        roomiest = sorted(range(len(parts)), key=lambda k: -room[k])
        kept = [k for k in roomiest if len(parts[k]) >= each.slots][:waiting]
        for k, part in enumerate(parts):
            claimed |= {*(free[k] if k in kept else free[k][: got[k] * each.slots])}
            reserved |= {*part} if k in kept or not waiting else set()
        for k in roomiest if each.preempts else ():
            gone = [victim for victim, _ in recalls]
            weaker = [
                one
                for one in holdings
                if one.recalled_by is None and one not in gone and worth(one) > each.priority
                if {*one.devices} & {*parts[k]}
            ]
            weaker.sort(key=lambda one: (-worth(one), -one.since, one.devices))
            chosen = cheapest(weaker, parts[k], each.slots, room[k], waiting)
            recalls += [(one, each.experiment) for one in chosen]
            waiting -= min(
                waiting,
                (room[k] + sum(len({*o.devices} & {*parts[k]}) for o in chosen)) // each.slots,
            )
    return Decision(tuple(starts), tuple(recalls))


# Random states


@st.composite
def states(draw: st.DrawFn) -> tuple[list[Request], list[Holding]]:
    priorities = st.sampled_from([1, 2, 42, 42, 99])
    steps = st.integers(0, 120).map(lambda k: NOW - k * AGING_SECONDS / 2)
    left = list(draw(st.permutations(MACHINE)))
    holdings = []
    while left and draw(st.booleans()):
        size = draw(st.integers(1, min(3, len(left))))
        priority = draw(priorities)
        holdings.append(
            Holding(
                experiment=draw(st.integers(1, 5)),
                devices=tuple(left[:size]),
                priority=priority,
                gained=draw(st.integers(0, priority + 3)),
                since=draw(steps),
                recalled_by=draw(st.none() | st.integers(1, 5)),
            )
        )
        del left[:size]
    requests = []
    uses = {name: draw(st.sampled_from([0.0, 60.0, 90.0])) for name in ("", "ann", "bob")}
    for turn in range(draw(st.integers(1, 5))):
        devices = draw(st.sampled_from([MACHINE, MACHINE, MACHINE[:3], MACHINE[2:]]))
        machines = draw(st.sampled_from([(), (), (1, len(devices) - 1), (2, 0, len(devices) - 2)]))
        user = draw(st.sampled_from(sorted(uses)))
        requests.append(
            Request(
                experiment=turn + 1,
                slots=draw(st.integers(1, 3)),
                runs=draw(st.integers(1, 4)),
                devices=devices,
                machines=machines,
                priority=draw(priorities),
                user=user,
                used_by_user=uses[user],
                weight=draw(st.sampled_from([1.0, 1.0, 2.0])),
                used=draw(st.sampled_from([0.0, 60.0, 90.0])),
                since=draw(steps),
                turn=turn,
                continues=draw(st.sampled_from([False, False, True])),
            )
        )
    return requests, holdings


@settings(max_examples=200, deadline=None)
@given(states())
def test_decisions_are_those_of_the_reference(
    state: tuple[list[Request], list[Holding]],
) -> None:
    requests, holdings = state
    assert decide(requests, holdings, NOW) == plainly(requests, holdings)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@settings(max_examples=10_000, deadline=None)
@given(states())
def test_ten_thousand_states_are_decided_as_by_the_reference(
    state: tuple[list[Request], list[Holding]],
) -> None:
    requests, holdings = state
    assert decide(requests, holdings, NOW) == plainly(requests, holdings)


@settings(max_examples=200, deadline=None)
@given(states())
def test_no_run_gives_way_to_its_own_priority_or_a_worse_one(
    state: tuple[list[Request], list[Holding]],
) -> None:
    requests, holdings = state
    decision = decide(requests, holdings, NOW)
    priorities = {each.experiment: each.priority for each in requests}
    assert all(victim.priority > priorities[needed] for victim, needed in decision.recalls)
    assert all(victim.recalled_by is None for victim, _ in decision.recalls)
    given_out = [device for _, devices in decision.starts for device in devices]
    assert len(given_out) == len({*given_out})
    assert not {*given_out} & {device for each in holdings for device in each.devices}


# The rules, one by one


def test_smaller_priorities_go_first_then_those_that_came_first() -> None:
    late, early, urgent = request(2), request(1), request(3, priority=1)
    assert in_order([late, early, urgent], NOW) == [urgent, early, late]


def test_the_least_served_for_its_weight_goes_first() -> None:
    light, heavy = request(1, used=100.0), request(2, used=150.0, weight=2.0)
    assert in_order([light, heavy], NOW) == [heavy, light]
    equal = replace(heavy, weight=1.0)
    assert in_order([equal, light], NOW) == [light, equal]


def test_the_least_served_user_goes_first_whatever_the_weights() -> None:
    few = request(3, user="ann", used=50.0, used_by_user=50.0)
    heavy = request(1, user="bob", used=60.0, used_by_user=90.0, weight=9.0)
    light = request(2, user="bob", used=30.0, used_by_user=90.0)
    assert in_order([light, heavy, few], NOW) == [few, heavy, light]
    # Of one user alone, what the others have used does not count.
    assert in_order([light, heavy], NOW) == [heavy, light]
    early, late = replace(few, turn=4), replace(few, turn=5, used_by_user=90.0)
    assert in_order([late, early], NOW) == [early, late]


def test_an_experiment_gets_the_rest_of_its_runs_before_its_rank() -> None:
    first, least = request(1), request(2, user="ann", used_by_user=0.0)
    continues = request(3, used_by_user=9.0, continues=True)
    urgent = request(4, priority=41)
    assert in_order([first, least, continues, urgent], NOW)[:2] == [urgent, continues]


def test_users_get_equal_shares_of_slot_seconds() -> None:
    """One has one experiment, another one nine, of which two count three times."""
    waiting = [request(0, user="ann")] + [
        request(k, user="bob", weight=3.0 if k < 3 else 1.0) for k in range(1, 10)
    ]
    uses = [0.0] * 10
    for _ in range(6000):
        shares = {"ann": uses[0], "bob": sum(uses[1:])}
        asks = [
            replace(each, used=uses[each.turn], used_by_user=shares[each.user]) for each in waiting
        ]
        uses[in_order(asks, NOW)[0].turn] += 1.0
    assert uses[0] == pytest.approx(3000, abs=1)
    assert uses[1] == pytest.approx(3 * uses[9], abs=5)


def test_use_counts_half_after_a_half_life() -> None:
    assert decayed(8.0, 3 * HALF_LIFE_SECONDS) == pytest.approx(1.0)
    assert used(10.0) == pytest.approx(10.0, rel=1e-3)
    parts = decayed(used(3600.0), 7200.0) + used(7200.0)
    assert parts == pytest.approx(used(10800.0))


@given(priority=st.integers(1, 99), others=st.lists(st.integers(1, 99), max_size=20))
def test_nothing_later_overtakes_a_request_that_waited_long(
    priority: int, others: list[int]
) -> None:
    """The bound of the documentation: ten minutes for each number of its priority."""
    old = request(0, priority=priority, since=NOW - priority * AGING_SECONDS)
    new = [request(k + 1, priority=each) for k, each in enumerate(others)]
    assert in_order([*new, old], NOW)[0] is old


def test_a_run_spends_what_its_request_has_gained_by_waiting() -> None:
    urgent = request(1, priority=1, devices=("cpu:0",))
    aged = holding("cpu:0", gained=42)
    assert decide([urgent], [aged], NOW).recalls == ()
    later = NOW + 2 * AGING_SECONDS
    assert decide([replace(urgent, since=later)], [aged], later).recalls == ((aged, 1),)


def test_the_fewest_runs_are_preempted_and_then_the_youngest() -> None:
    two = request(1, priority=1, slots=2)
    old, young = holding("cpu:0"), holding("cpu:1", since=NOW + 1)
    large = holding("cpu:2", "cpu:3", since=NOW - 9)
    full = holding("cpu:4", "cpu:5", priority=1)
    assert decide([two], [old, young, large, full], NOW).recalls == ((large, 1),)
    one = request(1, priority=1)
    assert decide([one], [old, young, large, full], NOW).recalls == ((young, 1),)


def test_request_that_cannot_use_devices_preempts_nothing() -> None:
    held = holding("a", priority=50)
    asks = request(1, priority=1, devices=("a",), runs=1, slots=1)
    assert decide([asks], [held], 0.0).recalls == ((held, asks.experiment),)
    assert decide([replace(asks, preempts=False)], [held], 0.0).recalls == ()


def test_devices_go_to_whom_runs_were_preempted_for() -> None:
    """Another one that has waited for long would claim them otherwise."""
    old = request(1, priority=42, devices=("a", "b"), runs=1, slots=2, since=-1e6)
    owed = request(2, priority=10, devices=("a", "b"), runs=1, slots=1, owed=True)
    decision = decide([old, owed], [holding("b", priority=42)], 0.0)
    assert decision.starts == ((owed, ("a",)),)
    assert decision.recalls == ()


def test_slots_on_their_way_back_are_not_recalled_again() -> None:
    urgent = request(1, priority=1, devices=MACHINE[:2])
    asked, other = holding("cpu:0", recalled_by=1), holding("cpu:1")
    assert decide([urgent], [asked, other], NOW).recalls == ()
    assert decide([replace(urgent, runs=2)], [asked, other], NOW).recalls == ((other, 1),)


def test_ten_thousand_requests_look_at_few_devices() -> None:
    """No step is quadratic: ranks are computed once for each request."""
    looks = 0

    class Counting(Request):
        def rank(self, now: float) -> int:
            nonlocal looks
            looks += 1
            return super().rank(now)

    waiting = [
        Counting(
            experiment=k, slots=1, runs=1, devices=MACHINE, priority=1 + k % 99, since=NOW, turn=k
        )
        for k in range(10_000)
    ]
    running = [holding(device, priority=99) for device in MACHINE]
    decision = decide(waiting, running, NOW)
    assert looks == len(waiting)
    assert [needed for _, needed in decision.recalls] == [0, 99, 198, 297, 396, 495]


# Several machines

TWO = tuple(f"{host}/cpu:{k}" for host in ("a", "b") for k in range(4))


def test_runs_of_one_machine_fill_the_fullest_that_has_room() -> None:
    small = request(1, devices=TWO, machines=(4, 4))
    large = request(2, devices=TWO, machines=(4, 4), slots=4)
    taken = holding("b/cpu:0")
    assert decide([small], [taken], NOW).starts == ((small, ("b/cpu:1",)),)
    assert decide([large], [taken], NOW).starts == ((large, TWO[:4]),)
    # A run that may use several machines takes what is free.
    both = request(3, devices=TWO, slots=6)
    assert decide([both], [taken], NOW).starts == ((both, (*TWO[:4], *TWO[5:7])),)


def test_a_large_run_that_waits_keeps_one_machine_for_itself() -> None:
    large = request(1, devices=TWO, machines=(4, 4), slots=4)
    small = request(2, devices=TWO, machines=(4, 4))
    taken = [holding("a/cpu:0"), holding("b/cpu:0"), holding("b/cpu:1")]
    assert decide([large, small], taken, NOW).starts == ((small, ("b/cpu:2",)),)


def test_a_run_preempts_on_the_machine_that_needs_the_fewest() -> None:
    urgent = request(1, devices=TWO, machines=(4, 4), slots=4, priority=1)
    a, b, c = holding("a/cpu:0"), holding("b/cpu:0"), holding("b/cpu:1")
    assert decide([urgent], [a, b, c], NOW).recalls == ((a, 1),)
    # What comes back on the other machine does not count.
    two = replace(urgent, runs=2)
    assert decide([two], [replace(a, recalled_by=1), b, c], NOW).recalls == ((b, 1), (c, 1))
