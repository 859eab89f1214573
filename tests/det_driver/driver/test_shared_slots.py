"""Drivers of one home share slots by priority: the worse one gives its slots back."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.test_fleet import Bench
from tests.support.forks import Forked, serving

from det_driver.cli import main
from det_driver.driver._search import SearchSteered
from det_driver.store import Store

ASHA = (
    "searcher: {{name: async_halving, metric: val_loss, max_trials: {trials}, max_length: 32,"
    " divisor: 2, num_rungs: 3, max_concurrent_trials: 2}}\n"
    "min_validation_period: 5\nmin_checkpoint_period: 100\n"
)
GATED = ("-c", "entrypoint=model_def:Hasty")
DRAWS = ("-c", "hyperparameters.noise=0.3", "-c", "hyperparameters.shuffle=true")
"""Hyperparameters with which a trial uses its random generators."""
HASTY = """

class Hasty(Trial):
    def build_data(self):
        return Gated(super().build_data(), 0.4)

class Gated(Slow):
    def records(self, batch):
        if os.path.exists(os.environ["DET_HOME"] + "/hurry"):
            self.pause = 0.0
        return super().records(batch)
"""
"""A trial that is slow until there is a file."""
URGENT = (
    "searcher: {name: random, metric: val_loss, max_trials: 1, max_length: 2}\n"
    "resources: {priority: 1}\n"
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path) as store:
        yield store


def preempted(bench: Bench) -> list[int]:
    bench.fleet.poll()
    return [each[1] for each in bench.engine.take_calls() if each[0] == "preempt"]


def set_(bench: Bench, **changes: Any) -> None:
    with bench.state.transaction():
        bench.state.append_event(SearchSteered(**changes))
    bench.fleet.follow_steering()


def test_the_youngest_run_makes_room_for_a_better_priority(store: Store) -> None:
    usual = Bench(store)
    assert usual.start() == [0, 1]
    urgent = Bench(store, resources={"priority": 1, "max_slots": 1})
    assert preempted(usual) == []
    assert urgent.start() == []
    assert len(preempted(usual)) == 1
    assert preempted(usual) == []
    urgent.fleet.poll()
    assert urgent.start() == []
    assert preempted(usual) == [], "one slot is enough"

    (given,) = [
        run for run, live in usual.fleet.running.items() if live.active and live.active.preempting
    ]
    usual.end(given)
    assert usual.start() == [], "the slot is for the other experiment"
    urgent.fleet.poll()
    assert urgent.start() == [0]

    urgent.state.trials[0].plan.closed = True
    for live in urgent.state.trials.values():
        live.plan.closed = True
    urgent.end(next(iter(urgent.fleet.running)))
    urgent.start()
    usual.fleet.poll()
    assert len(usual.start()) == 1, "what was preempted goes on"


def test_nobody_makes_room_for_the_same_priority(store: Store) -> None:
    first, second = Bench(store), Bench(store)
    first.start()
    assert second.start() == []
    assert preempted(first) == []
    assert store.slots.recalled(first.state.id) == {}


def test_nothing_is_given_back_to_one_that_waits_no_more(store: Store) -> None:
    usual, urgent = Bench(store), Bench(store, resources={"priority": 1})
    usual.start()
    urgent.start()
    assert len(store.slots.recalled(usual.state.id)) == 2
    store.slots.stop_waiting(urgent.state.id)
    assert preempted(usual) == []
    urgent.fleet.poll()
    set_(urgent, max_slots=1)
    urgent.start()
    assert len(preempted(usual)) == 1


def test_a_changed_priority_counts_for_runs_that_train(store: Store) -> None:
    first, second = Bench(store), Bench(store)
    first.start()
    second.start()
    set_(first, priority=43)
    second.fleet.poll()
    second.start()
    assert len(preempted(first)) == 2
    assert [each.priority for each in store.slots.queue().holding] == [43, 43]


def test_priority_that_was_set_counts_after_a_restart(store: Store) -> None:
    bench = Bench(store, resources={"priority": 7, "weight": 3})
    set_(bench, priority=8)
    bench.state.save_snapshot()
    bench.state._read()
    bench.again()
    assert bench.start() == [0, 1]
    assert [each.priority for each in store.slots.queue().holding] == [8, 8]
    assert [each.weight for each in store.slots.queue().waiting] == [3.0]


def test_use_is_counted_where_slots_are_released(store: Store) -> None:
    bench = Bench(store)
    bench.start()
    index = store.index.database
    index.run("UPDATE leases SET since = since - 100")
    assert store.slots.queue().waiting[0].used == pytest.approx(200, rel=0.05)
    held = store.slots._held[bench.state.id]
    held.update({device: each._replace(since=each.since - 100) for device, each in held.items()})
    bench.end(1)
    bench.start()
    assert index.row("SELECT used FROM shares")[0] == pytest.approx(100, rel=0.05)  # type: ignore[index]


def det(home: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DET_HOME", str(home))
        with pytest.raises(SystemExit) as end:
            main(list(words))
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out + said.err


def test_det_queue_lists_what_waits_and_what_holds_slots(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert det(tmp_path, capsys, "queue") == (
        0,
        "nothing waits for slots, and nothing holds any\n",
    )
    usual = Bench(store)
    usual.start()
    urgent = Bench(store, resources={"priority": 1, "max_slots": 1})
    urgent.start()
    rows = json.loads(det(tmp_path, capsys, "queue", "--json")[1])
    assert [(row["experiment"], row["state"], row["priority"]) for row in rows] == [
        (2, "waiting", 1),
        (1, "waiting", 42),
        (1, "running", 42),
        (1, "running", 42),
    ]
    assert [row["needed_by"] for row in rows if row["devices"]].count(2) == 1
    assert "(to be given to experiment 2)" in det(tmp_path, capsys, "queue")[1]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("1", "priority", "0"), "priority: '0' is not a whole number from 1 to 99"),
        (("1", "priority", "high"), "priority: 'high' is not a whole number from 1 to 99"),
        (("1", "weight", "0"), "weight: '0' is not a number above 0"),
        (("1", "weight", "nan"), "weight: 'nan' is not a number above 0"),
        (("1", "max-slots", "0"), "max-slots: '0' is not a whole number of 1 or more"),
        (("7", "priority", "3"), "no experiment 7"),
    ],
)
def test_det_set_refuses_other_values_in_a_sentence(
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    problem: str,
) -> None:
    Bench(store)
    status, said = det(tmp_path, capsys, "set", *words)
    assert status == 2
    assert problem in said
    assert len(said.splitlines()) == 1


def test_det_set_changes_an_experiment_with_one_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(tmp_path) as store:
        single = {"name": "single", "metric": "loss", "max_length": 10}
        bench = Bench(store, searcher=single)
        bench.state.store.close()
    assert det(tmp_path, capsys, "set", "1", "weight", "2.5") == (
        0,
        "experiment 1: weight 2.5\ngo on with: det resume 1\n",
    )
    assert det(tmp_path, capsys, "set", "1", "max-slots", "2")[0] == 0


@pytest.mark.sample
@pytest.mark.parametrize("preemptions", [2, 50])
@pytest.mark.timeout(1800)
@pytest.mark.process
def test_preempted_search_ends_as_an_undisturbed_one(
    project: Any, wait_until: Any, tmp_path: Path, preemptions: int
) -> None:
    """One slot, and experiments with priority 1 that come while the search trains."""
    seed = int(os.environ.get("DET_CHAOS_SEED") or random.randrange(10**6))
    print(f"DET_CHAOS_SEED={seed}")
    chance = random.Random(seed)
    model = project.det.cwd / "model_def.py"
    model.write_text(model.read_text() + HASTY)
    usual = project.write(ASHA.format(trials=2 + preemptions), "usual.yaml")
    urgent = project.write(URGENT, "urgent.yaml")
    others = 0

    def start(*words: str | Path) -> Forked:
        argv, env = project.det.argv(["run", *words, "--quiet"]), project.environ(1)
        return Forked(argv, env=project.det.env(env), cwd=project.det.cwd, stdin=subprocess.DEVNULL)

    def batches() -> int:
        return sum(len(path.read_text()) for path in project.det.home.glob("batches-of-*"))

    def preempted() -> int:
        return sum(run.outcome == "preempted" for runs in project.runs(1).values() for run in runs)

    Forked.place = tmp_path / "forks"
    with serving(Forked.place, project.det.env(project.env)):
        search = start(usual, *GATED, *DRAWS)
        wait_until(lambda: batches() > 0, "the first batch")
        while preempted() < preemptions:
            due = batches() + chance.randint(1, 3)
            wait_until(
                lambda due=due: batches() >= due or search.poll() is not None,
                "batches of the search",
            )
            assert start(urgent).wait(120) == 0
            others += 1
            assert search.poll() is None, "the search is too short for so many preemptions"
        (project.det.home / "hurry").touch()
        assert search.wait(600) == 0
        print(f"{others} experiments came, and {batches()} batches were trained")
        assert start(usual, *DRAWS).wait(600) == 0
    for other in range(2, 2 + others):
        (runs,) = project.runs(other).values()
        assert [run.outcome for run in runs] == ["completed"]
    disturbed, undisturbed = (project.outcome(each) for each in (1, 2 + others))
    disturbed.check()
    assert disturbed.table == undisturbed.table
    assert decisions(disturbed) == decisions(undisturbed)
    assert weights(project, disturbed) == weights(project, undisturbed)


def decisions(outcome: Any) -> list[str]:
    """Return the events of a search. A run that goes on may say again what was found before."""
    return [*dict.fromkeys(map(repr, outcome.events))]


def weights(project: Any, outcome: Any) -> list[bytes]:
    """Return the states in which the trials ended: weights, generators, and places in the data."""
    states = project.det.home / "checkpoints"
    return [
        (states / trial.latest_checkpoint / "state.json").read_bytes() for trial in outcome.trials
    ]
