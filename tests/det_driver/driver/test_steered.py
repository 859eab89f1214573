"""A search is steered while its driver runs, while it is paused, and when it is completed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from tests.det_driver.driver.test_state import again, end, reach
from tests.det_driver.driver.test_transactions import run, state_of

from det_core import Plugins
from det_core.config import parse, to_json
from det_core.errors import ConfigError, StoreError
from det_driver.cli._console import Settings
from det_driver.cli._search import search
from det_driver.driver import SearchSteered, reopen, steer
from det_driver.driver._lifecycle import STEER
from det_driver.driver._search import (
    SearchEvent,
    SearchFilled,
    SearchStarted,
    SearchTaught,
    decode_event,
)
from det_driver.driver._state import State
from det_driver.store import ExperimentState, Store, TrialState

ONE = {"name": "random", "metric": "loss", "max_trials": 1, "max_length": 10}
PLUGINS = Plugins.installed()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


def ended(
    store: Store,
    state: ExperimentState = ExperimentState.COMPLETED,
    slots: int = 1,
    **searcher: Any,
) -> int:
    """Make an experiment whose only trial has ended, and that nobody drives."""
    driven = state_of(store, ONE | searcher, resources={"slots_per_trial": slots})
    reach(driven, run(driven))
    end(driven, driven.trials[0])
    driven.save_snapshot()
    store.code_dir(driven.id).mkdir()
    store.experiments.update(driven.id, state=state)
    store.close()
    return driven.id


def test_a_completed_search_gets_more_trials_and_can_be_resumed(tmp_path: Path) -> None:
    id = ended(Store(tmp_path))
    with Store(tmp_path) as store:
        steer(store, id, SearchSteered(add_trials=2, enqueue=({"lr": 0.25},), max_slots=2), PLUGINS)
        assert store.experiments.get(id).state is ExperimentState.PAUSED
        reopen(store, id)
        trials = store.trials.list(id)
        assert [trial.state for trial in trials] == [TrialState.COMPLETED, *[TrialState.PAUSED] * 3]
        assert trials[1].hparams == {"lr": 0.25}
        # from the snapshot and from the journal alone
        for _ in range(2):
            found = State(store, id, PLUGINS)
            assert found.search.max_slots == 2
            assert [*found.open] == [1, 2, 3]
            with store.lock(id):
                store.snapshots.forget(id)


def test_what_was_steered_is_in_the_snapshot(store: Store) -> None:
    state = state_of(store)
    with state.transaction():
        state.append_event(SearchSteered(max_slots=3, stop_when="loss < 0.5"))
    state.save_snapshot()
    found = again(state)
    assert found.search.max_slots == 3
    live = run(found)
    reach(found, live, loss=0.4)
    assert found.search.searcher.stopped


def test_a_search_that_cannot_is_left_as_it_was(store: Store) -> None:
    state = state_of(store)
    before = [event.data for event in store.journal.read(state.id)]
    with pytest.raises(ConfigError, match="lr is 3"), state.transaction():
        state.append_event(SearchSteered(add_trials=1, enqueue=({"lr": 3},), max_slots=1))
    assert [event.data for event in store.journal.read(state.id)] == before
    assert state.search.max_slots is None
    assert len(state.trials) == 2


@pytest.mark.parametrize(
    ("state", "event", "why"),
    [
        (ExperimentState.CANCELED, SearchSteered(add_trials=1), "was canceled and cannot go on"),
        (
            ExperimentState.COMPLETED,
            SearchSteered(max_slots=1),
            "is completed; give it more trials",
        ),
        (
            ExperimentState.PAUSED,
            SearchSteered(max_slots=1),
            "slots_per_trial is 2, and max-slots is 1",
        ),
    ],
)
def test_an_experiment_that_cannot_be_steered_says_why(
    tmp_path: Path, state: ExperimentState, event: SearchSteered, why: str
) -> None:
    id = ended(Store(tmp_path), state, slots=2)
    with Store(tmp_path) as store, pytest.raises(StoreError, match=why):
        steer(store, id, event, PLUGINS)


def test_an_experiment_with_one_trial_is_no_search(tmp_path: Path) -> None:
    driven = state_of(Store(tmp_path), {"name": "single", "metric": "loss", "max_length": 10})
    driven.store.close()
    with (
        Store(tmp_path) as store,
        pytest.raises(StoreError, match="has one trial and is no search"),
    ):
        steer(store, driven.id, SearchSteered(add_trials=1), PLUGINS)


def test_refusal_of_a_running_search_is_reported_at_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(store)
    monkeypatch.setattr("det_driver.driver._lifecycle._READ_SECONDS", 0.0)
    with Store(tmp_path) as other:
        with pytest.raises(ConfigError, match="there is no hyperparameter 'size'"):
            steer(other, state.id, SearchSteered(enqueue=({"size": 1},)), PLUGINS)
        assert not store.commands.names(state.id)
        with pytest.raises(StoreError, match="the change waits for it, or for the next det resume"):
            steer(other, state.id, SearchSteered(add_trials=2), PLUGINS)
    (command,) = store.commands.take(state.id)
    assert command.kind == STEER
    assert msgspec.convert(command.args, SearchSteered) == SearchSteered(add_trials=2)


def test_driver_that_refuses_a_change_makes_it_an_error(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(store)
    with Store(tmp_path) as other:
        send = other.commands.send

        def send_and_refuse(*command: Any) -> None:
            send(*command)
            assert [each.kind for each in store.commands.take(state.id)] == [STEER]

        monkeypatch.setattr(other.commands, "send", send_and_refuse)
        with pytest.raises(StoreError, match=r"refuses the change.*nothing has changed"):
            steer(other, state.id, SearchSteered(add_trials=2), PLUGINS)


@pytest.mark.parametrize(
    ("ends", "change", "message"),
    [
        (ExperimentState.COMPLETED, {"max_slots": 3}, "is completed; give it more trials"),
        (ExperimentState.CANCELED, {"add_trials": 2}, "was canceled and cannot go on"),
        (ExperimentState.COMPLETED, {"add_trials": 2}, ""),
        (ExperimentState.PAUSED, {"stop_when": "loss < 0"}, ""),
    ],
)
def test_change_that_comes_as_a_driver_ends_is_not_lost(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: ExperimentState,
    change: dict[str, Any],
    message: str,
) -> None:
    driven = state_of(Store(tmp_path), ONE)
    reach(driven, run(driven))
    with Store(tmp_path) as other:
        send = other.commands.send

        def send_and_end(*command: Any) -> None:
            send(*command)
            send(driven.id, "pause")
            end(driven, driven.trials[0])
            driven.store.experiments.update(driven.id, state=ends)
            driven.store.close()

        monkeypatch.setattr(other.commands, "send", send_and_end)
        event = SearchSteered(**change)
        if message:
            with pytest.raises(StoreError, match=message):
                steer(other, driven.id, event, PLUGINS)
            return
        steer(other, driven.id, event, PLUGINS)
        assert steered_events(other, driven.id) == [event]
        assert other.experiments.get(driven.id).state is ExperimentState.PAUSED
        # Another process waits for its own command.
        with other.lock(driven.id):
            assert [each.kind for each in other.commands.take(driven.id)] == ["pause"]


def test_change_left_at_a_completed_search_counts_at_resume(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    id = ended(Store(tmp_path))
    with Store(tmp_path) as store:
        wrong, good = SearchSteered(enqueue=({"lr": 7},)), SearchSteered(add_trials=2)
        for event in (wrong, good):
            store.commands.send(id, STEER, msgspec.to_builtins(event))
        reopen(store, id)
        assert steered_events(store, id) == [good]
        assert len(State(store, id, PLUGINS).open) == 2
        assert not store.commands.names(id)
    assert "refuses a change by det search: lr is 7" in capfd.readouterr().err


def steered_events(store: Store, id: int) -> list[SearchEvent]:
    events = [decode_event(each.data) for each in store.journal.read(id)]
    return [event for event in events if isinstance(event, SearchSteered)]


def test_the_command_says_what_changes_and_how_to_go_on(tmp_path: Path) -> None:
    id = ended(Store(tmp_path))
    settings = Settings.read({"DET_HOME": str(tmp_path)})
    words = [
        "--add-trials",
        "2",
        "--enqueue",
        "lr=0.25",
        "--max-slots",
        "1",
        "--stop-when",
        "loss < 0.01",
    ]
    done = CliRunner().invoke(search, [str(id), *words], obj=settings, catch_exceptions=False)
    said = "1 enqueued trial; 2 more trials; 1 slot at most; stops when loss < 0.01"
    assert done.output == f"experiment {id}: {said}\ngo on with: det resume {id}\n"
    assert CliRunner().invoke(search, [str(id)], obj=settings).exit_code == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("1", "--enqueue", "lr"), "'lr' is no NAME=VALUE; give, for example, lr=0.01,dropout=0.2"),
        (("1", "--enqueue", "lr="), "'lr=' is no NAME=VALUE; give"),
        (
            ("1", "--enqueue", "lr=0.5,lr=0.25"),
            "lr is given twice; use --enqueue once for each trial",
        ),
        (
            ("const.yaml", "--add-trials", "2"),
            "'const.yaml' is not the number of an experiment; det list shows",
        ),
        (
            ("1", "--stop-when", "los < 0.1", "--add-trials", "1"),
            "no validation reports 'los'; did you mean 'loss'?",
        ),
        (
            ("1", "--stop-when", "recall > 0.1", "--add-trials", "1"),
            "no validation reports 'recall'; known: loss",
        ),
    ],
)
def test_a_mistake_in_the_command_says_the_way_out(
    tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    ended(Store(tmp_path))
    done = CliRunner().invoke(search, words, obj=Settings.read({"DET_HOME": str(tmp_path)}))
    said = (
        done.output.replace("\n", " ")
        if isinstance(done.exception, SystemExit)
        else str(done.exception)
    )
    assert why in said


def test_a_search_that_has_not_begun_begins_first(tmp_path: Path) -> None:
    """Otherwise its driver would find trials, and would not create those of the configuration."""
    ended(Store(tmp_path))
    searcher = {
        "metric": "loss",
        "sampler": "evolution",
        "max_trials": 3,
        "max_length": 10,
        "learn_from": [1],
    }
    space = {"lr": {"type": "double", "minval": 0, "maxval": 1}}
    config = parse(
        {"entrypoint": "model_def:Trial", "hyperparameters": space, "searcher": searcher}
    ).config
    with Store(tmp_path) as store:
        id = store.experiments.create(name="y", config=to_json(config), metric="loss").id
        steer(store, id, SearchSteered(add_trials=2), PLUGINS)
        assert len(store.trials.list(id)) == 5
        kinds = [type(decode_event(event.data)) for event in store.journal.read(id)]
        assert kinds == [SearchTaught, SearchStarted, SearchSteered]


SLOW = {
    "name": "async_halving",
    "metric": "loss",
    "num_rungs": 2,
    "divisor": 2,
    "max_trials": 5,
    "max_length": 20,
}
SLOW |= {"sampler": "evolution", "max_concurrent_trials": 2, "use_idle_slots": True}
CHANGES: dict[int, SearchEvent] = {
    1: SearchSteered(add_trials=2, enqueue=({"lr": 0.25},), max_slots=1),
    9: SearchFilled(1),
    10: SearchSteered(stop_when="loss < 0.01"),
}


def decided(store: Store, killed: str) -> Any:
    """Return the journal and the trials of a search that is changed.

    Its driver is killed after each event.
    """
    state = state_of(store, SLOW)
    for step in range(100):
        for live in [*state.closed]:
            end(state, live)
        state.closed.clear()
        if step in CHANGES:
            with state.transaction():
                state.append_event(CHANGES[step])
        if killed:
            if killed == "with a snapshot":
                state.save_snapshot()
            else:
                store.snapshots.forget(state.id)
            state = again(state)
        if not state.open:
            break
        if state.queue.first is not None:
            live = run(state)
            reach(state, live, loss=live.plan.hparams["lr"])
            state.queue.add(live)
    assert step > max(CHANGES)
    events = [event.data for event in store.journal.read(state.id)]
    trials = [
        (row.request, row.hparams, row.seed, row.state) for row in store.trials.list(state.id)
    ]
    return events, trials, state.search.max_slots, state.search.rungs


@pytest.mark.parametrize("killed", ["with a snapshot", "without one"])
def test_a_killed_driver_decides_as_one_that_was_not(tmp_path: Path, killed: str) -> None:
    """Also after its search was changed, and got trials for idle slots."""
    undisturbed, resumed = (decided(Store(tmp_path / each), each) for each in ("", killed))
    assert resumed == undisturbed
    assert len(undisturbed[1]) > 8
