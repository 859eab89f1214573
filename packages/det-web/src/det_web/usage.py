"""/api/v1/usage and /api/v1/slots: who has used how many slots, and when."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from det_core.errors import StoreError
from det_driver.store import ExperimentRow, RunSpan, Store

from .endpoints import ApiRequest, Endpoint, Refused

_BINS = 120
_HOUR = 3600.0
_Seconds = Annotated[float, Meta(ge=0, le=1e11)]


class SlotsQuery(Struct):
    """The last so many hours."""

    hours: Annotated[float, Meta(gt=0, le=24 * 366)] = 24.0


class HeldSlots(Struct):
    """The slots that an experiment has held on average, in each of the steps.

    `user` owns it. It is null where the server does not know one.
    """

    experiment: int
    name: str
    user: str | None
    slots: list[float]


class SlotsTimeline(Struct):
    """The experiments that held slots, from `since` on in steps of `step` seconds."""

    since: float
    step: float
    experiments: list[HeldSlots]


class UsageQuery(Struct):
    """From `since` to before `until`, in unix seconds: by default from the beginning until now."""

    since: _Seconds = 0.0
    until: _Seconds | None = None


class Used(Struct):
    """The slot-hours of the trials of a user in a project that are in one state now.

    `user` is null where the server does not know one, and `project` and `workspace` are empty
    where the configurations name none.
    """

    user: str | None
    workspace: str
    project: str
    state: str
    experiments: int
    slot_hours: float


class Usage(Struct):
    """The use of slots in a time, the most first.

    A trial that was running when its driver died counts until its last report. What was trained
    elsewhere, or by scripts that det did not start, holds no slots and does not count.
    """

    since: float
    until: float
    rows: list[Used]


class _Resources(Struct):
    slots_per_trial: int = 1


class _Config(Struct):
    project: str = ""
    workspace: str = ""
    resources: _Resources | None = None


_Key = tuple[str | None, str, str, str]
"""The user, workspace, project and state of trials."""


class _Ran(NamedTuple):
    """Runs of an experiment in a time."""

    experiment: ExperimentRow
    config: _Config
    slots: int
    spans: list[RunSpan]


_read = lru_cache(maxsize=4096)(msgspec.json.Decoder(_Config).decode)


def slots(asked: ApiRequest) -> SlotsTimeline:
    """Return how many slots each experiment has held in the last hours."""
    until = time.time()
    since = until - asked.query.hours * _HOUR
    step = (until - since) / _BINS
    owners, found = asked.owners(), []
    for ran in _ran(asked, since, until):
        held = [0.0] * _BINS
        for span in ran.spans:
            first, last = (span.started - since) / step, (span.ended - since) / step
            for at in range(int(first), min(_BINS, int(last) + 1)):
                held[at] += max(0.0, min(last, at + 1) - max(first, at)) * ran.slots
        row = ran.experiment
        owner = owners.get((row.id, row.created))
        found.append(HeldSlots(row.id, row.name, owner, [round(each, 3) for each in held]))
    return SlotsTimeline(since, step, found)


def usage(asked: ApiRequest) -> Usage:
    """Return the slot-hours in a time, by user, project and state of the trials."""
    since, until = asked.query.since, asked.query.until
    until = time.time() if until is None else until
    if since >= until:
        raise Refused(400, f"the time from {since:g} to {until:g} is empty; give a later `until`")
    owners, hours = asked.owners(), defaultdict[_Key, float](float)
    counted = defaultdict[_Key, set[int]](set)
    for ran in _ran(asked, since, until):
        owner = owners.get((ran.experiment.id, ran.experiment.created))
        for span in ran.spans:
            key = (owner, ran.config.workspace, ran.config.project, str(span.state))
            hours[key] += (span.ended - span.started) * ran.slots / _HOUR
            counted[key].add(ran.experiment.id)
    rows = [Used(*key, len(counted[key]), round(hours[key], 6)) for key in hours]
    return Usage(since, until, sorted(rows, key=lambda row: -row.slot_hours))


def _ran(asked: ApiRequest, since: float, until: float) -> Iterator[_Ran]:
    """Yield the experiments that held slots in a time. One that cannot be read is left out."""
    if not Store.is_at(asked.home):
        return
    with asked.store() as store:
        for summary in store.experiments.list(archived=None, unread={}):
            row = summary.experiment
            ended = row.ended if row.ended is not None else until
            if not row.journal or row.started is None or row.started > until or ended < since:
                continue
            try:
                config = _read(row.config)
                driven = store.experiments.driven(row.id)
                spans = [*store.runs.spans(row.id, since, until, driven=driven)]
                store.experiments.release(row.id)
            except (StoreError, msgspec.DecodeError):
                continue
            held = (config.resources or _Resources()).slots_per_trial
            if spans and held:
                yield _Ran(row, config, held, spans)


ENDPOINTS = (
    Endpoint(method="GET", path="/slots", does=slots, response=SlotsTimeline, query=SlotsQuery),
    Endpoint(method="GET", path="/usage", does=usage, response=Usage, query=UsageQuery),
)
"""The endpoints about the use of slots."""
