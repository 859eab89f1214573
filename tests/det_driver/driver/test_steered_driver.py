"""A driver takes what somebody wants of its search, once, and fills idle slots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.det_driver.driver.test_fleet import Bench

from det_core import Plugins
from det_driver.driver import Driver, SearchSteered
from det_driver.driver._alerts import ExperimentAlerts
from det_driver.driver._endings import Endings
from det_driver.driver._lifecycle import STEER
from det_driver.driver._search import SearchFilled, decode_event
from det_driver.store import ExperimentState, Store

HALVING = {
    "name": "async_halving",
    "metric": "loss",
    "num_rungs": 2,
    "divisor": 2,
    "max_trials": 2,
    "max_length": 20,
}
HALVING |= {"max_concurrent_trials": 2, "use_idle_slots": True}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


def driver_of(bench: Bench) -> Any:
    """Return the driver of an experiment, as it is between two looks at its inbox."""
    driver: Any = Driver(bench.settings, bench.state.id, Plugins.installed())
    driver._store, driver._state, driver._runs = bench.state.store, bench.state, bench.fleet
    driver._endings = Endings(bench.state, driver.failures)
    driver._alerts = ExperimentAlerts(bench.state.store, bench.state.id)
    return driver


def killed(event: SearchSteered) -> None:
    raise KeyboardInterrupt


def steered(store: Store, id: int) -> list[Any]:
    return [
        event
        for each in store.journal.read(id)
        if isinstance(event := decode_event(each.data), SearchSteered)
    ]


def test_change_is_applied_once_and_a_refusal_is_reported(
    store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(store)
    driver = driver_of(bench)
    bench.start()
    wrong, good = SearchSteered(enqueue=({"lr": 7},)), SearchSteered(add_trials=2, max_slots=1)
    for event in (wrong, good):
        store.commands.send(bench.state.id, STEER, msgspec.to_builtins(event))
    driver._poll()
    driver._poll()
    assert steered(store, bench.state.id) == [good]
    assert len(bench.state.trials) == 6
    assert ("preempt", 2, "the experiment is limited to 1 slot") in bench.engine.calls
    assert (
        "refuses a change by det search: lr is 7, which is not in the space"
        in capfd.readouterr().err
    )


def test_driver_killed_before_its_commit_leaves_the_command(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(store)
    driver = driver_of(bench)
    store.commands.send(bench.state.id, STEER, msgspec.to_builtins(SearchSteered(add_trials=2)))
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_steer", killed)
        with pytest.raises(KeyboardInterrupt):
            driver._poll()
    assert steered(store, bench.state.id) == []
    driver._poll()
    assert steered(store, bench.state.id) == [SearchSteered(add_trials=2)]


def test_experiment_that_is_canceled_takes_no_change(
    store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(store)
    driver = driver_of(bench)
    bench.state.target_state = ExperimentState.CANCELED
    store.commands.send(bench.state.id, STEER, msgspec.to_builtins(SearchSteered(add_trials=2)))
    driver._poll()
    assert steered(store, bench.state.id) == []
    assert "refuses a change by det search: it is being canceled" in capfd.readouterr().err


def test_a_slot_that_nobody_waits_for_gets_a_further_trial(store: Store) -> None:
    bench = Bench(store, searcher=HALVING)
    driver = driver_of(bench)
    assert bench.start() == [0, 1]
    driver._poll()
    assert len(bench.state.trials) == 2
    live = bench.state.trials[0]
    with bench.state.transaction():
        bench.state.validated(live, live.active, 10, {"loss": 1.0}, 10)
    bench.end(1)
    driver._poll()
    driver._poll()
    events = [decode_event(each.data) for each in store.journal.read(bench.state.id)]
    assert [event for event in events if isinstance(event, SearchFilled)] == [SearchFilled(1)]
    assert bench.start() == [2]


def test_a_slot_that_the_search_may_not_use_gets_none(store: Store) -> None:
    bench = Bench(store, searcher=HALVING)
    driver = driver_of(bench)
    bench.start()
    store.commands.send(bench.state.id, STEER, msgspec.to_builtins(SearchSteered(max_slots=1)))
    driver._poll()
    live = bench.state.trials[0]
    with bench.state.transaction():
        bench.state.validated(live, live.active, 10, {"loss": 1.0}, 10)
    bench.end(1)
    driver._poll()
    assert bench.state.search.searcher.may_fill
    assert len(bench.state.trials) == 2
