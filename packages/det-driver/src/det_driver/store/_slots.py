"""The devices of this machine and of its hosts, leased by their ids to the drivers of a home.

There is no daemon: the process that holds the lock of the index decides, by `det_driver.queue`.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from det_core.errors import StoreError, StoreUnwritable
from det_driver.queue import (
    DEFAULT_PRIORITY,
    TURN_SECONDS,
    Decision,
    Holding,
    Request,
    decayed,
    decide,
    in_order,
    negligible_after,
    used,
)
from det_driver.store._database import Database
from det_driver.store._index import Index
from det_driver.store._locks import boot_id
from det_driver.store._records import Lease
from det_driver.store._schema import dump, load
from det_driver.store._wakeups import wake
from det_node.process import is_running, process_identity

T = TypeVar("T")
WAITING_SECONDS = 10.0
NEW_SECONDS = 5.0
"""The time without leases after an index was rebuilt while drivers run.

In that time each driver writes its leases to the new index.
"""


RENEW_SECONDS = 3.0
"""A refused request that is repeated sooner, and was not called, writes nothing."""
LOOK_SECONDS = 1.0
"""How often a process looks for dead ones, and for requests that waiting has advanced."""


class _Refused(NamedTuple):
    """A request that got nothing, and when it was last written to the waiting list."""

    request: tuple[object, ...]
    asked: float


class _Held(NamedTuple):
    """A device that this process holds, as in the table of leases."""

    run: str
    since: float
    gained: int
    fence: float


class QueueView(NamedTuple):
    """The requests that wait, in order, and the runs that hold devices."""

    waiting: list[Request]
    holding: list[Holding]
    now: float


class Slots:
    """Leases devices, such as `cuda:GPU-…` or `cpu:0`, in the order of `det_driver.queue`.

    No device is leased twice. A refused request joins the waiting list. It keeps its place if it is
    repeated within `WAITING_SECONDS`. Whoever frees a device decides who gets it, calls that
    request, and wakes its driver (`Wakeups`). All others that wait only read now and then whether
    they were called, so that hundreds can wait. Free devices that an earlier request waits for are
    reserved for it, so that trials of one slot do not starve a trial of two slots. A request for
    which runs of lower priority hold devices recalls these, and their drivers learn it from
    `recalled`. Devices and places of dead processes are freed. If the index cannot be used, nothing
    is leased.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._held: dict[int, dict[str, _Held]] = {}
        self._shares: dict[int, tuple[int, float, str]] = {}
        self._refused: dict[int, _Refused] = {}
        self._warned = False
        # The index in which all held leases are written, and the holder in whose name.
        self._database: Database | None = None
        self._written_as, self._unwritten = (0, ""), False
        self.holder = os.getpid()
        """The process that holds the leases. They end with it."""
        self.fence = 0.0
        """For how many seconds runs may go on after the holder has died. Leases end after that."""
        self.key: Callable[[str], str] = str
        """Returns the id by which a device is leased, which all drivers of a home use."""

    def set_share(self, experiment_id: int, priority: int, weight: float, user: str = "") -> None:
        """Set the priority, weight and user of an experiment's requests and leases, from now on."""
        if self._shares.get(experiment_id) != (priority, weight, user):
            self._shares[experiment_id] = (priority, weight, user)
            if self._database is not None:
                self._sync_and_call(lambda database, birth: _call_next(database))

    def lease(
        self, experiment_id: int, slots: int, devices: Sequence[str], *, most: int | None = None
    ) -> Lease | None:
        """Lease `slots` of `devices`. None means that the caller should retry soon.

        An experiment gets at most `most` devices at once.
        """
        return next(iter(self.leases(experiment_id, slots, devices, most=most)), None)

    def leases(
        self,
        experiment_id: int,
        slots: int,
        devices: Sequence[str],
        *,
        machines: Sequence[int] = (),
        most: int | None = None,
        count: int = 1,
        preempts: bool = True,
    ) -> list[Lease]:
        """Lease `slots` of `devices` for each of `count` runs, or for as many as possible.

        `machines` is how many of the devices, in this order, are on each machine. Then the devices
        of a run are on one machine. Without `preempts` no run of lower priority is recalled.
        """
        if slots > (total := max(machines or (len(devices),))):
            raise StoreError(
                f"slots_per_trial is {slots}, and {'the largest' if machines else 'this'} machine"
                f" has {total} slots; ask for {total} at most"
            )
        held = self._held.setdefault(experiment_id, {})
        if most is not None and slots:
            count = min(count, (most - len(held)) // slots)
        if not slots or count <= 0:
            return [Lease(experiment_id, (), ())] * max(count, 0)
        keys, machines = tuple(map(self.key, devices)), tuple(machines)
        asked = (slots, keys, machines, count, preempts, self.holder)
        if self._waits_uncalled(experiment_id, asked):
            return []

        def take(database: Database, birth: str) -> list[tuple[str, ...]]:
            if _is_new(database):
                return []
            now, wanted = _now(), count - len(found)
            me = (boot_id(), experiment_id, self.holder, birth)
            # Another process may have deleted the row while this experiment waited for nothing.
            self._put_shares(database, (experiment_id,))
            place = database.row(
                "SELECT id, since, owed, got FROM waiting WHERE boot = ? AND experiment_id = ?"
                " AND pid = ? AND born = ?",
                me,
            )
            turn, since, owed, began = place or (_LAST, now, 0, None)
            state = _State(database, now)
            mine = state.request(
                *(turn, experiment_id, slots, wanted, keys, machines, since, preempts, owed, began)
            )
            others = [each for each in state.requests() if each.turn != turn]
            decision = decide([*others, mine], state.holdings, now)
            recalls.extend(decision.recalls)
            chosen = [got for request, got in decision.starts if request is mine]
            if place and chosen:
                database.run("DELETE FROM waiting WHERE id = ?", place[:1])
            if len(chosen) < wanted:
                # What is given back for it later goes to it, too.
                owed = any(each.recalled_by == experiment_id for each in state.holdings)
                began = now if chosen and not mine.continues else began
                row = (now, slots, wanted - len(chosen), now, preempts, owed, began)
                database.run(_ASK, (*me, dump([*keys]), dump([*machines]), *row))
                # Devices of dead processes may be free after the first attempt.
                _recall(database, decision.recalls if syncs else ())
            elif place:
                database.run(_FORGET, (me[0], me[0]))
            for got in chosen:
                gained = mine.priority - mine.rank(now)
                leased.update(dict.fromkeys(got, _Held(got[0], now, gained, self.fence)))
                for device in got:
                    database.run(_TAKE, (me[0], device, *me[1:], *leased[device]))
            _call_others(database, decision, mine, chosen, others, state.holdings)
            self._refused[experiment_id] = _Refused(asked, now)
            return chosen

        found, recalls = list[tuple[str, ...]](), list[tuple[Holding, int]]()
        leased: dict[str, _Held] = {}
        # The second attempt first frees the devices of dead processes. It is made if nobody has
        # looked for them lately, and at once where others are to give devices back or the first one
        # could not be made.
        for syncs in (False, True):
            if len(found) < count and not (syncs and not recalls and self._may_wait()):
                leased.clear()
                got = self._sync_and_call(take, frees=True) if syncs else self._attempt(take)
                if got is not None:
                    found += got
                    held.update(leased)
        if found:
            self._refused.pop(experiment_id, None)
        # By key: the index on its machine, and the device.
        indices = (k for size in machines or (len(keys),) for k in range(size))
        places = dict(zip(keys, zip(indices, devices, strict=True), strict=True))
        return [_lease(experiment_id, map(places.__getitem__, each)) for each in found]

    def hold(self, experiment_id: int, *leases: Lease) -> None:
        """Add leases that the holder has from an earlier driver of the experiment.

        Other leases of that driver end, if it has died.
        """
        for lease in leases:
            held = self._held.setdefault(experiment_id, {})
            keys = [*map(self.key, lease.devices)]
            for key in keys:
                held.setdefault(key, _Held(keys[0], _now(), 0, self.fence))
        self._sync_and_call(lambda database, birth: None, frees=True)
        self.end_fenced(experiment_id)

    def end_fenced(self, experiment_id: int) -> None:
        """End the leases of an experiment's dead driver, because no run of it is left."""
        where = "FROM leases WHERE boot = ? AND experiment_id = ?"
        of = (boot_id(), experiment_id)
        if self._index.attempt(
            lambda database: database.row(f"SELECT 1 {where} AND fence > 0", of)
        ):
            sql = f"DELETE {where} AND ends IS NOT NULL RETURNING experiment_id, since"

            def free(database: Database, birth: str) -> None:
                _charge(database, database.rows(sql, of))
                _call_next(database)

            self._sync_and_call(free, frees=True)

    def age(self, lease: Lease) -> float:
        """Return for how many seconds devices have been leased. Infinite if they are not."""
        held = self._held.get(lease.experiment_id, {})
        since = [held[key].since for key in map(self.key, lease.devices) if key in held]
        return _now() - min(since) if since else math.inf

    def release(self, *leases: Lease) -> None:
        """Release the devices. A second call does nothing."""
        mine = [
            (device, lease.experiment_id, self._held[lease.experiment_id].pop(device))
            for lease in leases
            for device in map(self.key, lease.devices)
            if device in self._held.get(lease.experiment_id, ())
        ]

        def free(database: Database, birth: str) -> bool:
            sql = (
                "DELETE FROM leases WHERE boot = ? AND device = ? AND experiment_id = ? AND pid = ?"
                " AND born = ?"
            )
            for device, experiment_id, _ in mine:
                database.put(sql, (boot_id(), device, experiment_id, self.holder, birth))
            _charge(database, ((experiment, held.since) for _, experiment, held in mine))
            _call_next(database)
            return True

        if mine and self._attempt(free) is None:
            self._unwritten = True
            self.keep()

    def stop_waiting(self, experiment_id: int) -> None:
        """Leave the waiting list at once, before the place expires."""
        sql = "DELETE FROM waiting WHERE experiment_id = ? AND pid = ?"

        def leave(database: Database) -> None:
            with database.transaction():
                left = database.run(sql, (experiment_id, self.holder))
                database.run(_FORGET, (boot_id(), boot_id()))
                if left:
                    _call_next(database)

        self._index.attempt(leave)

    def recalled(self, experiment_id: int) -> dict[str, int]:
        """Return the held devices to give back, with the experiment that needs each of them.

        They are named by the ids by which they are leased.
        """
        if not self._held.get(experiment_id):
            return {}
        sql = (
            "SELECT device, recalled FROM leases WHERE boot = :boot AND experiment_id = :id AND"
            " recalled IN (SELECT experiment_id FROM waiting WHERE boot = :boot)"
        )
        named = {"boot": boot_id(), "id": experiment_id}
        return dict(self._index.attempt(lambda database: database.rows(sql, named)) or ())

    def holders(self) -> dict[int, list[str]]:
        """Return the leased devices, by the experiment whose driver holds them."""
        sql = (
            "SELECT experiment_id, device FROM leases WHERE boot = ? ORDER BY experiment_id, device"
        )
        found: dict[int, list[str]] = {}
        for experiment, device in (
            self._index.attempt(lambda database: database.rows(sql, (boot_id(),))) or ()
        ):
            found.setdefault(experiment, []).append(device)
        return found

    def waiting(self) -> list[int]:
        """Return the experiments on the waiting list, the first one first."""
        return [request.experiment for request in self.queue().waiting]

    def queue(self) -> QueueView:
        """Return what waits for devices and what holds them."""
        now = _now()

        def read(database: Database) -> QueueView:
            state = _State(database, now)
            return QueueView(in_order(state.requests(), now), state.holdings, now)

        return self._index.attempt(read) or QueueView([], [], now)

    def keep(self) -> None:
        """Write the held leases to the index again, as it may have been rebuilt or busy before."""
        is_written = not self._unwritten and self._index.known is self._database
        if self._held and not (is_written and self._was_looked_at()):
            self._sync_and_call(lambda database, birth: None)

    def _put_shares(self, database: Database, experiments: Iterable[int]) -> None:
        for experiment in experiments:
            if experiment in self._shares:
                database.run(_SHARE, (boot_id(), experiment, *self._shares[experiment]))

    def _waits_uncalled(self, experiment_id: int, request: tuple[object, ...]) -> bool:
        """Return whether the same request waits already and was not called. Renew its place."""
        refused, database = self._refused.get(experiment_id), self._index.known
        if refused is None or database is None or refused.request != request:
            return False
        of, now = (boot_id(), experiment_id, self.holder), _now()
        with suppress(StoreError):
            if now - refused.asked >= RENEW_SECONDS:
                database.run(_RENEW, (now, *of))
                self._refused[experiment_id] = _Refused(request, now)
            called, looked = database.row(_CALLED, of) or (True, now)
            if not called and not 0 <= now - looked < LOOK_SECONDS:
                self._sync_and_call(lambda database, birth: None)
                called, _ = database.row(_CALLED, of) or (True, now)
            return not called
        return False

    def _may_wait(self) -> bool:
        """Return whether a refused request is in the index, and dead processes were looked for."""
        is_written = self._index.known is self._database and self._written_as[0] == self.holder
        return is_written and self._was_looked_at()

    def _was_looked_at(self) -> bool:
        """Return whether a process has lately looked for dead ones."""
        database = self._index.known
        with suppress(StoreError):
            return database is not None and 0 <= _now() - _looked(database) < LOOK_SECONDS
        return False

    def _attempt(self, act: Callable[[Database, str], T]) -> T | None:
        """Call `act` in a transaction of the index in which all leases are known to be written.

        Returns None if the index is another one, or busy.
        """
        (pid, birth), database = self._written_as, self._index.known
        if database is None or database is not self._database or pid != self.holder:
            return None
        with suppress(StoreError), database.transaction():
            return act(database, birth)
        return None

    def _sync_and_call(self, act: Callable[[Database, str], T], *, frees: bool = False) -> T | None:
        """Call `act` in a transaction that first writes all leases that this process holds.

        It also frees the leases of dead processes, if `frees` or nobody has done so lately.
        """
        boot, pid = boot_id(), self.holder
        birth = process_identity(pid) or ""

        def sync(database: Database) -> T:
            with database.transaction():
                looks = frees or not 0 <= _now() - _looked(database) < LOOK_SECONDS
                if looks:
                    _free_dead(database)
                    database.run(_PRUNE, (time.time(),))
                self._put_shares(database, self._shares)
                held = {
                    (experiment, device): each
                    for experiment, devices in self._held.items()
                    for device, each in devices.items()
                }
                sql = (
                    "SELECT experiment_id, device FROM leases WHERE boot = ? AND pid = ? AND"
                    " born = ?"
                )
                there = {
                    each for each in database.rows(sql, (boot, pid, birth)) if each[0] in self._held
                }
                for experiment, device in there - held.keys():
                    sql = (
                        "DELETE FROM leases WHERE boot = ? AND experiment_id = ? AND device = ?"
                        " RETURNING experiment_id, since"
                    )
                    _charge(database, database.rows(sql, (boot, experiment, device)))
                for experiment, device in held.keys() - there:
                    row = (boot, device, experiment, pid, birth, *held[experiment, device])
                    database.run(_TAKE, row)
                if looks:
                    _call_next(database)
                done = act(database, birth)
            self._database, self._written_as, self._unwritten = database, (pid, birth), False
            return done

        try:
            return sync(self._index.database)
        except StoreError as error:
            done = self._index.attempt(sync)
            if done is None and isinstance(error, StoreUnwritable) and "locked" not in str(error):
                raise
            if done is None and not self._warned and "locked" not in str(error):
                self._warned = True
                sys.stderr.write(f"det: no device can be leased: {error}\n")
            return done


_LAST = 2**63 - 1
_ASK = """
INSERT INTO waiting
    (boot, experiment_id, pid, born, devices, machines, asked, slots, runs, since, preempts, owed,
    got)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET devices = excluded.devices, machines = excluded.machines,
    asked = excluded.asked, slots = excluded.slots, runs = excluded.runs,
    preempts = excluded.preempts, called = 0
"""
# An experiment takes over what its earlier driver held when it died.
_TAKE = """
INSERT INTO leases (boot, device, experiment_id, pid, born, run, since, gained, fence)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET pid = excluded.pid, born = excluded.born, fence = excluded.fence,
    ends = NULL
WHERE leases.experiment_id = excluded.experiment_id AND leases.ends IS NOT NULL
"""
_END = """
UPDATE leases SET ends = ? + fence WHERE boot = ? AND pid = ? AND born = ? AND ends IS NULL
"""
_SHARE = """
INSERT INTO shares (boot, experiment_id, priority, weight, user) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET priority = excluded.priority, weight = excluded.weight,
    user = excluded.user
"""
# Shares of all boots, as those of this machine's earlier boots would remain for ever.
_PRUNE = """
DELETE FROM shares WHERE until < ? AND (boot, experiment_id) NOT IN
(SELECT boot, experiment_id FROM leases UNION ALL SELECT boot, experiment_id FROM waiting)
"""
_RENEW = "UPDATE waiting SET asked = ? WHERE boot = ? AND experiment_id = ? AND pid = ?"
_CALLED = """
SELECT called, coalesce((SELECT value FROM counters WHERE name = 'looked'), -1)
FROM waiting WHERE boot = ? AND experiment_id = ? AND pid = ?
"""
_CALL = "UPDATE waiting SET called = 1 WHERE boot = ? AND experiment_id = ? AND called = 0"
_OWE = "UPDATE waiting SET owed = 1 WHERE boot = ? AND experiment_id = ?"
_RECALL = "UPDATE leases SET recalled = ? WHERE boot = ? AND device = ?"
# An experiment that does not wait any more needs nothing back.
_FORGET = """
UPDATE leases SET recalled = NULL WHERE boot = ? AND recalled IS NOT NULL
AND recalled NOT IN (SELECT experiment_id FROM waiting WHERE boot = ?)
"""


class _Share(NamedTuple):
    """What decides the place of an experiment in the queue. `used` is in slot-seconds."""

    priority: int
    weight: float
    used: float
    user: str


_USUAL = _Share(DEFAULT_PRIORITY, 1.0, 0.0, "")


class _State:
    """The leases and the requests of this machine, as the tables have them."""

    def __init__(self, database: Database, now: float) -> None:
        boot = (boot_id(),)
        self._now = now
        self._waiting = database.rows(
            "SELECT id, experiment_id, slots, runs, devices, machines, since, preempts, owed, got"
            " FROM waiting WHERE boot = ?",
            boot,
        )
        self._shares = {
            experiment: _Share(
                priority or DEFAULT_PRIORITY,
                1.0 if weight is None else weight,
                decayed(until, now - at),
                user,
            )
            for experiment, priority, weight, until, at, user in database.rows(
                "SELECT experiment_id, priority, weight, used, at, user FROM shares WHERE boot = ?",
                boot,
            )
        }
        sql = (
            "SELECT experiment_id, pid, coalesce(run, device), gained, recalled,"
            " coalesce(since, ?), json_group_array(device) FROM leases WHERE boot = ?"
            " GROUP BY 1, 2, 3"
        )
        waiting_experiments = {row[1] for row in self._waiting}
        self.holdings = [
            Holding(
                experiment=experiment,
                devices=tuple(load(devices)),
                priority=self._share(experiment).priority,
                gained=gained,
                since=since,
                recalled_by=recalled if recalled in waiting_experiments else None,
            )
            for experiment, _, _, gained, recalled, since, devices in database.rows(
                sql, (now, *boot)
            )
        ]
        self._using = defaultdict[int, float](float)
        for each in self.holdings:
            self._using[each.experiment] += len(each.devices) * used(now - each.since)
        self._by_user = defaultdict[str, float](float)
        for experiment in self._shares.keys() | self._using.keys():
            share = self._share(experiment)
            self._by_user[share.user] += share.used + self._using.get(experiment, 0.0)

    def requests(self) -> list[Request]:
        """Return what waits, in the order of arrival."""
        # Most requests have the same devices, which are read once.
        texts = {text for row in self._waiting for text in row[4:6]}
        known = {text: tuple(load(text)) for text in texts}
        return [
            self.request(turn, experiment, slots, runs, known[devices], known[machines], *rest)
            for turn, experiment, slots, runs, devices, machines, *rest in self._waiting
        ]

    def request(
        self,
        turn: int,
        experiment: int,
        slots: int,
        runs: int,
        devices: tuple[str, ...],
        machines: tuple[int, ...],
        since: float | None,
        preempts: bool,
        owed: bool,
        got: float | None,
    ) -> Request:
        share = self._share(experiment)
        # Otherwise devices that a run of several slots cannot use yet would stay free until then.
        continues = slots == 1 and got is not None and self._now - got < TURN_SECONDS
        return Request(
            experiment=experiment,
            slots=slots,
            runs=runs,
            devices=devices,
            machines=machines,
            priority=share.priority,
            user=share.user,
            weight=share.weight,
            used=share.used + self._using.get(experiment, 0.0),
            used_by_user=self._by_user[share.user],
            since=self._now if since is None else since,
            turn=turn,
            preempts=bool(preempts),
            owed=bool(owed),
            continues=continues,
        )

    def _share(self, experiment: int) -> _Share:
        return self._shares.get(experiment, _USUAL)


def _recall(database: Database, recalls: Iterable[tuple[Holding, int]]) -> None:
    """Ask runs to give their devices back for others."""
    for victim, needed_by in recalls:
        database.run(_OWE, (boot_id(), needed_by))
        for device in victim.devices:
            database.run(_RECALL, (needed_by, boot_id(), device))


def _call_others(
    database: Database,
    decision: Decision,
    mine: Request,
    chosen: Sequence[tuple[str, ...]],
    others: Sequence[Request],
    holdings: Sequence[Holding],
) -> None:
    """Call the other requests that may get devices when one has got those in `chosen`.

    Until then its runs could get any device, so that these were for nobody else.
    """
    now = _now()
    got = [
        Holding(experiment=mine.experiment, devices=each, priority=mine.priority, since=now)
        for each in chosen
    ]
    holdings = [*holdings, *got]
    in_use = {device for each in holdings for device in each.devices}
    # Most requests have the same devices, which are looked at once.
    usable = {id(each.devices): each.devices for each in others}
    if got and not all(in_use.issuperset(devices) for devices in usable.values()):
        decision = decide(others, holdings, now)
    _call(database, decision, all_but=mine)


def _is_new(database: Database) -> bool:
    made = database.row("SELECT value FROM counters WHERE name = 'made'")
    return made is not None and 0 <= time.time() - made[0] < NEW_SECONDS


def _lease(experiment_id: int, places: Iterable[tuple[int, str]]) -> Lease:
    slots, devices = zip(*places, strict=True)
    return Lease(experiment_id, slots, devices)


def _charge(database: Database, freed: Iterable[tuple[int, float | None]]) -> None:
    """Add the time for which devices were leased to the use of their experiments."""
    now, amounts = _now(), defaultdict[int, float](float)
    for experiment, since in freed:
        amounts[experiment] += used(now - (now if since is None else since))
    for experiment, amount in amounts.items():
        key = (boot_id(), experiment)
        row = database.row("SELECT used, at FROM shares WHERE boot = ? AND experiment_id = ?", key)
        total = amount + (decayed(row[0], now - row[1]) if row else 0.0)
        # By the clock of the day, which goes on when this machine is started again.
        until = time.time() + negligible_after(total)
        database.put(
            "INSERT INTO shares (boot, experiment_id, used, at, until) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET used = excluded.used, at = excluded.at,"
            " until = excluded.until",
            (*key, total, now, until),
        )


def _free_dead(database: Database) -> None:
    """Free the devices and places of dead processes, and places that were not renewed."""
    boot = boot_id()
    sql = (
        "SELECT pid, born FROM leases WHERE boot = ? UNION"
        " SELECT pid, born FROM waiting WHERE boot = ?"
    )
    for other, others in database.rows(sql, (boot, boot)):
        if not is_running(other, others):
            gone = (boot, other, others)
            database.run(_END, (_now(), *gone))
            freed = (
                "DELETE FROM leases WHERE boot = ? AND pid = ? AND born = ? AND ends <= ?"
                " RETURNING experiment_id, since"
            )
            _charge(database, database.rows(freed, (*gone, _now())))
            database.run("DELETE FROM waiting WHERE boot = ? AND pid = ? AND born = ?", gone)
    late = _now() - WAITING_SECONDS
    database.run("DELETE FROM waiting WHERE boot = ? AND asked < ?", (boot, late))
    database.run(_FORGET, (boot, boot))
    database.run("INSERT OR REPLACE INTO counters VALUES ('looked', ?)", (_now(),))


def _looked(database: Database) -> float:
    """Return when a process looked for dead ones, by the clock of this boot or an earlier one."""
    row = database.row("SELECT value FROM counters WHERE name = 'looked'")
    return row[0] if row else -LOOK_SECONDS


def _call_next(database: Database) -> None:
    """Decide who gets devices now, and call these requests."""
    if database.row("SELECT 1 FROM waiting WHERE boot = ?", (boot_id(),)):
        now = _now()
        state = _State(database, now)
        _call(database, decide(state.requests(), state.holdings, now))


def _call(database: Database, decision: Decision, all_but: Request | None = None) -> None:
    """Have those requests ask again that may get devices, or have runs to preempt."""
    called = {request.experiment for request, _ in decision.starts if request is not all_but}
    called |= {experiment for _, experiment in decision.recalls}
    if all_but is not None:
        called.discard(all_but.experiment)
    now_called = [each for each in called if database.run(_CALL, (boot_id(), each))]
    if now_called:
        database.afterwards(lambda: wake(database.path.parent, now_called))


def _now() -> float:
    # All processes of the machine share this clock, and nobody can set it back.
    return time.clock_gettime(time.CLOCK_MONOTONIC)
