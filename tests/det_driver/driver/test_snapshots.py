"""A search from a snapshot and the events after it is the one that all events give."""

from __future__ import annotations

import copy
import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.det_driver.search.test_properties import CONFIGS, SPACE

from det_core import Plugins, SearcherRecord, hookimpl
from det_core.config import Length, Pbt, ReplaceFunction, parse, to_json
from det_core.errors import StoreError
from det_driver.driver._search import (
    JournaledSearch,
    SearchEvent,
    SearchStarted,
    TrialExited,
    TrialValidated,
)
from det_driver.driver._snapshots import EVENTS, SECONDS, _decode, _encode
from det_driver.driver._state import State
from det_driver.search import Close, Create, Exit, Searcher, Train, make
from det_driver.store import Store
from det_testing._search_play import Play

DOUBLE = {"type": "double", "minval": 0, "maxval": 1}
RANDOM = {
    "name": "random",
    "metric": "loss",
    "max_trials": 300,
    "max_length": 10,
    "max_concurrent_trials": 2,
}


@contextmanager
def experiment(home: Path, plugins: Plugins | None = None) -> Iterator[State]:
    """The state of a driver that has a new experiment."""
    config = parse(
        {"entrypoint": "m:T", "hyperparameters": {"lr": DOUBLE}, "searcher": RANDOM}
    ).config
    with Store(home) as store:
        made = store.experiments.create(name="x", config=to_json(config), metric="loss")
        with store.lock(made.id):
            store.experiments.update(made.id, det="0.1.7")
            yield State(store, made.id, plugins or Plugins.installed())


def again(state: State) -> State:
    """What the next driver finds."""
    return State(state.store, state.id, state.plugins)


def remembered(state: State) -> Any:
    return of_search(state.search)


def of_search(search: JournaledSearch) -> Any:
    """What there is to a search, as one can compare it."""
    return copy.deepcopy((search.plans, search.searcher.state(), search.rungs, search.over))


def take(state: State, *events: SearchEvent) -> None:
    with state.transaction():
        for event in events:
            state.append_event(event)


def event_of(name: str, *arguments: Any) -> SearchEvent:
    match name:
        case "start":
            return SearchStarted()
        case "validated":
            trial, length, metrics = arguments
            return TrialValidated(trial, length, length, dict(metrics))
        case _:
            return TrialExited(*arguments)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CONFIGS, st.integers(0, 2**32 - 1))
def test_snapshot_and_later_events_restore_the_whole_search(config: Any, seed: int) -> None:
    """Of every built-in searcher.

    Its plans, its rungs, its own state, with every end that a trial may come to.
    """
    reasons = tuple(
        reason for reason in Exit if reason is not Exit.CANCELED
    )  # after that nothing begins any more
    play = Play(make(config, SPACE, seed), seed, faults=0.1, nan=0.1, early=0.2, reasons=reasons)
    while len(play.events) < 40 and play.step():
        pass
    events = [event_of(*event) for event in play.events]
    search, cuts = JournaledSearch(make(config, SPACE, seed)), []
    for event in events:
        search.replay([event], Counter())
        cuts.append(_encode(search, search.searcher.state()))
    whole = of_search(search)
    for number, cut in enumerate(cuts, 1):
        again = _decode(
            cut, make(config, SPACE, seed), search.plans
        )  # hyperparameters and seeds are the trials' own
        again.replay(events[number:], Counter())
        assert of_search(again) == whole


def test_a_snapshot_knows_of_whom_a_trial_is_a_copy() -> None:
    replaced = ReplaceFunction(truncate_fraction=0.5)
    length = Length("batches", 10)
    pbt = Pbt(
        metric="loss",
        population_size=2,
        num_rounds=2,
        length_per_round=length,
        replace_function=replaced,
    )
    reports = [TrialValidated(trial, 10, 10, {"loss": float(trial)}) for trial in range(2)]
    search = JournaledSearch.replayed(make(pbt, SPACE, 0), [SearchStarted(), *reports])
    assert [plan.source for plan in search.plans.values()] == [None, None, 0]
    again = _decode(_encode(search, search.searcher.state()), make(pbt, SPACE, 0), search.plans)
    assert of_search(again) == of_search(search)


def search_of(state: State, trials: int) -> None:
    """Let so many trials come to their ends."""
    take(state, SearchStarted())
    for trial in range(trials):
        take(
            state, TrialValidated(trial, 10, 10, {"loss": 1.0}), TrialExited(trial, Exit.COMPLETED)
        )


def change(state: State, sql: str) -> None:
    with (
        closing(sqlite3.connect(state.store.experiment_dir(state.id) / "experiment.db")) as raw,
        raw,
    ):
        raw.execute(sql)


def test_growing_search_is_saved_and_replays_only_later_events(tmp_path: Path) -> None:
    """What a snapshot covers is not read from the journal again."""
    with experiment(tmp_path) as state:
        search_of(state, 2 * EVENTS)
        seqs = [each.seq for each in state.store.snapshots.read(state.id)]
        assert len(seqs) == 2
        assert 4 * EVENTS + 1 - seqs[0] <= len(state.trials)  # no more than this is replayed
        change(state, f"UPDATE journal SET event = 'unreadable' WHERE seq <= {seqs[0]}")
        assert remembered(again(state)) == remembered(state)


def kept(state: State, seq: int, seconds: float) -> bool:
    """Let an event happen, for which the searcher computed for so long.

    Tell whether the search is kept then.
    """
    with state.transaction():
        state._snapshots.note_event(state.search, seq, seconds)
    return seq in {each.seq for each in state.store.snapshots.read(state.id)}


def test_a_search_is_kept_after_so_many_events(tmp_path: Path) -> None:
    with experiment(tmp_path) as state:
        search_of(state, 0)
        events = [EVENTS - 1, EVENTS, EVENTS + 1, 2 * EVENTS - 1, 2 * EVENTS]
        assert [kept(state, seq, 0.0) for seq in events] == [False, True, False, False, True]


def test_cheaper_snapshots_of_a_slow_search_are_more_frequent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock by which keeping it takes a tenth of a second."""
    clock = itertools.count(5.0, 0.1)
    with experiment(tmp_path) as state:
        search_of(state, 0)
        monkeypatch.setattr(
            "det_driver.driver._snapshots.time", SimpleNamespace(perf_counter=partial(next, clock))
        )
        assert not kept(state, 2, SECONDS - 0.1)
        assert kept(state, 3, 0.2)
        assert not kept(state, 4, SECONDS + 0.35)
        assert kept(state, 5, 0.1)


def test_where_a_turn_fails_no_snapshot_of_it_stays(tmp_path: Path) -> None:
    def decide() -> None:
        with state.transaction():
            state.append_event(TrialExited(0, Exit.COMPLETED))
            state.save_snapshot()
            raise ZeroDivisionError

    with experiment(tmp_path) as state:
        search_of(state, 0)
        before = remembered(state)
        with pytest.raises(ZeroDivisionError):
            decide()
        assert not state.store.snapshots.read(state.id)
        assert remembered(state) == before


@pytest.mark.parametrize(
    "later",
    [
        "format = format + 1",
        "version = version + 1",
        "state = '{\"searcher\": {}}'",
        "state = 'no JSON'",
    ],
)
def test_a_snapshot_that_this_det_does_not_read_is_passed_over(
    tmp_path: Path, later: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with experiment(tmp_path) as state:
        search_of(state, 5)
        state.save_snapshot()
        change(state, f"UPDATE snapshots SET {later}")
        assert remembered(again(state)) == remembered(state)
        sentence = (
            "det: a snapshot of the search of experiment 1 is passed over, as it cannot be read: "
        )
        assert capsys.readouterr().err.startswith(sentence) is later.startswith("state")
        change(state, "UPDATE journal SET event = 'unreadable' WHERE seq = 2")
        with pytest.raises(
            StoreError,
            match=(
                r"^event 2 of the journal of experiment 1 is none that this det knows \(.*\); go on"
                r" with it in the det-driver "
                r"that wrote it$"
            ),
        ):
            again(state)


def test_an_event_that_this_det_does_not_know_is_refused(tmp_path: Path) -> None:
    with experiment(tmp_path) as state:
        search_of(state, 1)
        change(state, """UPDATE journal SET event = '{"type": "married"}' WHERE seq = 2""")
        with pytest.raises(
            StoreError,
            match=r"^event 2 of the journal of experiment 1 is none that this det knows \(",
        ):
            again(state)


def test_a_journal_of_a_later_version_is_refused(tmp_path: Path) -> None:
    with experiment(tmp_path) as state:
        change(state, "UPDATE experiment SET journal = 2")
        with pytest.raises(
            StoreError,
            match=(
                r"^experiment 1 has a journal of version 2, and this det reads version 1; go on"
                r" with it in det-driver 0.1.7 "
                r"or later$"
            ),
        ):
            again(state)


@pytest.mark.parametrize("other", ["seed = seed + 1", "hparams = '{}'"])
def test_searcher_that_decides_differently_is_refused(tmp_path: Path, other: str) -> None:
    """As one of another version may; its trials would be taken for those that were trained."""
    with experiment(tmp_path) as state:
        search_of(state, 3)
        change(state, f"UPDATE trials SET {other} WHERE request = 3")
        with pytest.raises(
            StoreError,
            match=(
                r"^the searcher of experiment 1 decides otherwise than it did: given the same"
                r" events, trial 3 of its search is "
                r"another one; go on with it in det-driver 0.1.7, or with the plugin as it was$"
            ),
        ):
            again(state)


class Forgetful(Searcher):
    """Trains one trial after another, and is asked for its state, which cannot be kept."""

    told: Any = None

    def start(self) -> list[Any]:
        return [Create(0, {}, 0), Train(0, 10)]

    def validated(self, trial: int, length: int, metrics: Any) -> list[Any]:
        return [Close(trial)]

    def exited(self, trial: int, reason: Exit) -> list[Any]:
        return [Create(trial + 1, {}, 0), Train(trial + 1, 10)]

    def progress(self, trial_progress: Any) -> float:
        return 0.0

    def state(self) -> Any:
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (None, ""),
        ({"x": float("nan")}, "ValueError: Out of range float values are not JSON compliant"),
        (ZeroDivisionError("oh"), "ZeroDivisionError: oh"),
    ],
)
def test_unsaveable_searcher_goes_on_and_replays_all_events(
    tmp_path: Path,
    told: Any,
    why: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Plugin:
        @hookimpl
        def det_searchers(self) -> Any:
            yield SearcherRecord(
                name="random", make=lambda config, hyperparameters, seed: Forgetful()
            )

    monkeypatch.setattr(Forgetful, "told", told)
    plugins = Plugins()
    plugins.register(Plugin(), "forgetful")
    with experiment(tmp_path, plugins=plugins) as state:
        search_of(state, EVENTS)
        assert not state.store.snapshots.read(state.id)
        said = capsys.readouterr().err
        sentence = (
            f"det: the searcher of experiment 1 cannot be saved ({why}); det resume gives it all"
            " past events again\n"
        )
        assert said.startswith(sentence[: sentence.index(")")]) if why else not said
        assert said.count("\n") == bool(why)  # once
        assert {r: live.plan for r, live in again(state).trials.items()} == {
            r: t.plan for r, t in state.trials.items()
        }
