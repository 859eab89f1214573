"""Describes how to draw a search: the rungs of its brackets, or the rounds of a population."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from det_core.config import AdaptiveAsha, AsyncHalving, ExperimentConfig, Hyperband, Pbt
from det_driver.search import adaptive_brackets, as_named, hyperband_brackets, rung_lengths
from det_driver.store import Store

from .shapes import Bracket, Member, Rung, RungEntry, Search

Reports = dict[int, list[tuple[float, int, float | None]]]
"""For each trial, by the searcher's number: the position of each report in the searcher's unit and
in batches, and the metric."""


class _Validated(msgspec.Struct):
    trial: int
    length: int
    batches: int
    metrics: dict[str, Any]


_validated = msgspec.json.Decoder(_Validated).decode


def kind_of(config: ExperimentConfig) -> Literal["curves", "rungs", "population"]:
    """Return how a search is drawn."""
    searcher = as_named(config.searcher, config.hyperparameters)
    if isinstance(searcher, Pbt):
        return "population"
    return "rungs" if isinstance(searcher, AsyncHalving | AdaptiveAsha | Hyperband) else "curves"


def picture(store: Store, id: int, config: ExperimentConfig) -> Search:
    """Return the drawing of an experiment's search, from its journal and its newest snapshot."""
    searcher = as_named(config.searcher, config.hyperparameters)
    kind = kind_of(config)
    found = Search(
        kind, getattr(searcher, "metric", ""), getattr(searcher, "smaller_is_better", True)
    )
    if isinstance(searcher, Pbt):
        found.rounds = _rounds(
            store, id, searcher.length_per_round.n, _reports(store, id, found.metric, None)
        )
    elif kind == "rungs":
        found.brackets = _brackets(store, id, searcher, found.metric)
    return found


def _reports(store: Store, id: int, metric: str, clock: str | None) -> Reports:
    reports: Reports = defaultdict(list)
    for event in store.journal.read(id, having='"validated"'):
        try:
            validated = _validated(event.data)
        # For example, a metric is NaN.
        except (msgspec.ValidationError, msgspec.DecodeError):
            continue
        at = validated.metrics.get(clock, 0) if clock else validated.length
        value = validated.metrics.get(metric)
        reports[validated.trial].append(
            (at, validated.batches, value if isinstance(value, int | float) else None)
        )
    return reports


def _lengths(searcher: Any) -> list[list[int]]:
    """Return the lengths of the rungs of each bracket, in the searcher's unit."""
    if isinstance(searcher, Hyperband):
        length = searcher.max_length.n
        return [
            [rung.length for rung in rungs]
            for rungs in hyperband_brackets(length, searcher.divisor)
        ]
    adaptive = isinstance(searcher, AdaptiveAsha)
    counts = (
        [rungs for rungs, _, _ in adaptive_brackets(searcher)] if adaptive else [searcher.num_rungs]
    )
    if searcher.use_idle_slots:
        # The trials of idle slots have a bracket of their own, which is like the first one.
        counts.append(counts[0])
    longest = searcher.max_time if searcher.max_time is not None else searcher.max_length.n
    return [rung_lengths(count, searcher.divisor, longest) for count in counts]


def _brackets(store: Store, id: int, searcher: Any, metric: str) -> list[Bracket]:
    lengths = [sorted({*rungs}) for rungs in _lengths(searcher)]
    clock = searcher.time_metric if getattr(searcher, "max_time", None) is not None else None
    reports = _reports(store, id, metric, clock)
    owners, goals = _snapshot(store, id)
    brackets = [Bracket([Rung(length, []) for length in rungs]) for rungs in lengths]
    for trial in store.trials.list(id):
        if len(brackets) > 1 and trial.request >= len(owners):
            # The newest snapshot is older than this trial, and does not have its bracket.
            continue
        own = brackets[owners[trial.request] if len(brackets) > 1 else 0]
        mine = [
            next(((value,) for at, _, value in reports[trial.request] if at >= r.length), None)
            for r in own.rungs
        ]
        goal = goals[trial.request] if trial.request < len(goals) else None
        for place, (rung, value) in enumerate(zip(own.rungs, mine, strict=True)):
            further = any(mine[place + 1 :]) or (goal or 0) > rung.length
            if value or further or place == 0 or (goal or 0) >= rung.length:
                rung.trials.append(RungEntry(trial.id, value[0] if value else None, further))
    return brackets


def _snapshot(store: Store, id: int) -> tuple[list[int], list[int | None]]:
    """Return each trial's bracket and its target, as far as a snapshot has them."""
    for saved in store.snapshots.read(id):
        try:
            state = msgspec.json.decode(saved.state)
            searcher = state["searcher"]
            # A searcher with a budget contains the other searcher.
            method = searcher.get("searcher", searcher)["method"]
            return method.get("owners", []), state["until"]
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
            continue
    return [], []


def _rounds(store: Store, id: int, length: int, reports: Reports) -> list[list[Member]]:
    saved = {
        row.uuid: (row.trial_id, row.batches) for row in store.checkpoints.list(experiment_id=id)
    }
    born: dict[int, int] = {}
    # How many rounds a trial had trained, by the trial and the position.
    ends: dict[tuple[int, int], int] = {}
    rounds: dict[int, dict[int, Member]] = defaultdict(dict)
    for trial in store.trials.list(id):
        parent, position = saved.get(trial.source_checkpoint or "", (None, 0))
        parent = parent if parent in born else None
        born[trial.id] = 0 if parent is None else born[parent] + ends.get((parent, position), 1)
        for done, batches, metric in _ended(reports.get(trial.request, []), length):
            ends[trial.id, batches] = done
            rounds[born[trial.id] + done - 1].setdefault(trial.id, Member(trial.id, parent, metric))
        rounds[born[trial.id]].setdefault(trial.id, Member(trial.id, parent, None))
    return [list(rounds[number].values()) for number in sorted(rounds)]


def _ended(
    reports: list[tuple[float, int, float | None]], length: int
) -> Iterator[tuple[int, int, float | None]]:
    for at, batches, metric in reports:
        if at >= length:
            yield int(at // length), batches, metric
