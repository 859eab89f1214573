"""Saved states of a search, from which the journal is replayed.

A driver reads the newest one and the later events, not the whole journal.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

import msgspec

from det_core.errors import StoreError
from det_node.launch import say

from ..search import Exit, Searcher, Shutdown
from ..store import JOURNAL, ExperimentRow, Snapshot, Store, TrialRow
from ._search import JournaledSearch, RungCount, TrialPlan, TrialReopened, read_event

FORMAT = 3
"""The version of a snapshot apart from the searcher's own state. Every change of it raises this."""
EVENTS = 100
SECONDS = 0.25
_EXITS = (None, *Exit)


class SavedSearch:
    """The snapshots of one experiment's search, which a new driver reads.

    A snapshot is due in either of two cases:

    - As many events have come as there are trials, and at least EVENTS.
    - The searcher has computed for SECONDS plus four times the duration of a snapshot.

    Snapshots therefore take a fraction of the time that is spent anyway, and the events after the
    newest one are replayed within moments, whatever the searcher.
    """

    def __init__(self, store: Store, experiment_id: int) -> None:
        self._store, self._id = store, experiment_id
        self._seq = self._kept = 0
        self._seconds = self._cost = 0.0
        self._able = True
        self._det = version("det-driver")

    def read(
        self,
        experiment: ExperimentRow,
        trials: Mapping[int, TrialRow],
        make: Callable[[], Searcher],
    ) -> JournaledSearch:
        """Return the committed search: the newest readable snapshot and the events after it.

        `trials` has the searcher's numbers as keys.

        StoreError: the journal has a newer version, or the searcher now decides differently.
        """
        if experiment.journal > JOURNAL:
            raise StoreError(
                f"experiment {self._id} has a journal of version {experiment.journal}, and this det"
                f" reads version {JOURNAL}; go on with it in det-driver {experiment.det} or later"
            )
        search, self._kept = self._newest(trials, make)
        self._seq, self._seconds, known = self._kept, 0.0, len(search.plans)
        journal, after = self._store.journal, self._kept
        read = partial(read_event, self._id)
        again = map(read, journal.read(self._id, after, having='"reopened"'))
        reopened = Counter(event.trial for event in again if isinstance(event, TrialReopened))
        search.replay(map(read, journal.read(self._id, after)), reopened)
        for request in range(known, len(search.plans)):
            _check(experiment, search.plans[request], trials.get(request))
        return search

    def note_event(self, search: JournaledSearch, seq: int, seconds: float) -> None:
        """Note that the search has handled the event of this journal number within `seconds`."""
        self._seq = seq
        self._seconds += seconds
        if (
            seq - self._kept >= max(EVENTS, len(search.plans))
            or self._seconds > SECONDS + 4 * self._cost
        ):
            self.save(search)

    def save(self, search: JournaledSearch) -> None:
        """Save the search. A searcher that cannot be saved continues without snapshots."""
        if not self._able or self._seq == self._kept:
            return
        began = time.perf_counter()
        state = self._encoded(search)
        if state is None:
            return
        saved = Snapshot(self._seq, self._det, FORMAT, search.searcher.version, state)
        self._store.snapshots.keep(self._id, saved)
        self._kept, self._seconds, self._cost = self._seq, 0.0, time.perf_counter() - began

    def _encoded(self, search: JournaledSearch) -> bytes | None:
        try:
            state = search.searcher.state()
            if state is not None:
                return _encode(search, state)
        except Exception as error:
            # An error in a third-party searcher only makes a resume slower.
            what = f"{type(error).__name__}: {error}"
            say(
                f"the searcher of experiment {self._id} cannot be saved ({what}); det resume gives"
                " it all past events again"
            )
        self._able = False
        return None

    def _newest(
        self, trials: Mapping[int, TrialRow], make: Callable[[], Searcher]
    ) -> tuple[JournaledSearch, int]:
        for saved in self._store.snapshots.read(self._id):
            searcher = make()
            if (saved.format, saved.version) == (FORMAT, searcher.version):
                try:
                    return _decode(saved.state, searcher, trials), saved.seq
                except Exception as error:
                    what = f"{type(error).__name__}: {error}"
                    say(
                        f"a snapshot of the search of experiment {self._id} is passed over, as it"
                        f" cannot be read: {what}"
                    )
        return JournaledSearch(make()), 0


def _encode(search: JournaledSearch, state: dict[str, Any]) -> bytes:
    """Return a search as JSON, without hyperparameters and seeds, which the trials' rows have."""
    plans = search.plans.values()
    kept = {
        "searcher": state,
        "until": [plan.until for plan in plans],
        "flags": (
            bytes(
                48 + plan.wanted + 2 * plan.closed + 4 * _EXITS.index(plan.exited) for plan in plans
            ).decode()
        ),
        "sources": [(plan.request, plan.source) for plan in plans if plan.source is not None],
        "rungs": [(rung.length, rung.reached, rung.under_way) for rung in search.rungs],
        "max_slots": search.max_slots,
        "priority": search.priority,
        "weight": search.weight,
        "over": search.over and (search.over.failed, search.over.cancelled),
    }
    return json.dumps(kept, allow_nan=False, separators=(",", ":")).encode()


def _decode(saved: bytes, searcher: Searcher, trials: Mapping[int, TrialRow]) -> JournaledSearch:
    kept = msgspec.json.decode(saved)
    searcher.restore(kept["searcher"])
    search = JournaledSearch(searcher)
    sources = dict(kept["sources"])
    for request, (until, flags) in enumerate(
        zip(kept["until"], kept["flags"].encode(), strict=True)
    ):
        row, bits = trials[request], flags - 48
        search.plans[request] = TrialPlan(
            *(request, row.hparams, row.seed, sources.get(request), until),
            *(bool(bits & 1), bool(bits & 2), _EXITS[bits >> 2]),
        )
    search.counted(RungCount(*rung) for rung in kept["rungs"])
    search.max_slots = kept["max_slots"]
    search.priority, search.weight = kept["priority"], kept["weight"]
    search.over = kept["over"] and Shutdown(*kept["over"])
    return search


def _check(experiment: ExperimentRow, plan: TrialPlan, row: TrialRow | None) -> None:
    """Raise StoreError unless a trial of the replayed journal equals the recorded one."""
    if row is None or row.seed != plan.seed or json.dumps(row.hparams) != json.dumps(plan.hparams):
        raise StoreError(
            f"the searcher of experiment {experiment.id} decides otherwise than it did: given the"
            f" same events, trial {plan.request} of its search is another one; go on with it in"
            f" det-driver {experiment.det}, or with the plugin as it was"
        )
