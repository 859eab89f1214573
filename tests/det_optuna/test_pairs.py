"""Optuna's samplers beside the schedules of det."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from det_core.config import Categorical, Combined, Double, Int, Length, Log
from det_core.errors import ConfigError
from det_core.hooks import Plugins
from det_driver.search import Create, EarlierResult, Exit, Search, Train, combined
from det_optuna.pairs import REMEMBERED
from det_testing._search_play import Play, give

SPACE: dict[str, Any] = {
    "kind": Categorical(vals=("sgd", "adam")),
    "momentum": Double(minval=0, maxval=1, when={"kind": "sgd"}),
    "n": Int(minval=1, maxval=64, log=True),
    "x": Double(minval=0, maxval=1),
}
PAIRS = [
    ("tpe", "full"),
    ("tpe", "async_halving"),
    ("tpe", "adaptive_asha"),
    ("tpe", "hyperband"),
    ("gp", "full"),
    ("gp", "async_halving"),
    ("gp", "adaptive_asha"),
    ("gp", "hyperband"),
    ("cmaes", "full"),
    ("nsgaii", "full"),
]


def search(sampler: str, schedule: str, space: Any = None, **keys: Any) -> Search:
    given = {
        "max_trials": None if schedule == "hyperband" else 30,
        "max_concurrent_trials": 3,
    } | keys
    config = Combined(
        metric="loss", sampler=sampler, schedule=schedule, max_length=Length("epochs", 9), **given
    )  # type: ignore[arg-type]
    return combined(config, SPACE if space is None else space, 5, Plugins.installed().samplers())


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize(("sampler", "schedule"), PAIRS)
def test_the_same_events_give_the_same_proposals(sampler: str, schedule: str) -> None:
    """From the beginning, and from a state that was kept half way; also where trials fail."""
    keys: dict[str, Any] = {"constraints": ("n < 60",)}
    if sampler == "gp":
        pytest.importorskip("torch", reason="Optuna's GP needs it")
        # It takes a tenth of a second to propose, in a space of several kinds a whole one.
        keys["space"] = {"n": SPACE["n"], "x": SPACE["x"]}
        keys["sampler_options"] = {"startup_trials": 14 if schedule == "hyperband" else 5}
        keys["max_trials"] = None if schedule == "hyperband" else 7
    play = Play(search(sampler, schedule, **keys), 3, faults=0.1, nan=0.1).finish()
    assert all(create.hparams["n"] < 60 for create in play.created)
    again, restored = (search(sampler, schedule, **keys) for _ in range(2))
    moment = len(play.events) // 2
    for number, (event, operations) in enumerate(zip(play.events, play.operations, strict=True)):
        assert give(again, event) == operations
        if number > moment:
            assert give(restored, event) == operations
        if number == moment:
            restored.restore(json.loads(json.dumps(again.state(), allow_nan=False)))


@pytest.mark.parametrize("sampler", ["cmaes", "nsgaii", "qmc"])
def test_sampler_of_whole_generations_is_refused_with_halving(sampler: str) -> None:
    with pytest.raises(
        ConfigError, match=f"searcher.sampler is '{sampler}', which learns from whole generations"
    ):
        search(sampler, "async_halving")


def run(pair: Search, trials: int) -> tuple[list[float], list[float]]:
    """Take a search of `x` through.

    Return the losses in order of creation, and the seconds of each decision.
    """
    due, created, seconds = [], {}, []

    def obey(operations: list[Any]) -> None:
        for operation in operations:
            if isinstance(operation, Create):
                created[operation.trial] = abs(operation.hparams["x"] - 0.3)
            elif isinstance(operation, Train):
                due.append((operation.trial, operation.until))

    obey(pair.start())
    while due and len(created) < trials:
        trial, until = due.pop(0)
        began = time.process_time()
        operations = pair.validated(trial, until, {"loss": created[trial] + 1 / until})
        seconds.append(time.process_time() - began)
        obey(operations)
    return [*created.values()], seconds


def test_it_learns_from_trials_that_were_not_trained_to_the_end() -> None:
    space = {"x": Double(minval=0, maxval=1), "lr": Log(minval=-3, maxval=0)}
    losses, _ = run(search("tpe", "async_halving", space, max_trials=60), 60)
    assert sum(losses[30:]) / 30 < sum(losses[:10]) / 10 / 2


@pytest.mark.slow
def test_its_memory_is_bounded() -> None:
    """Of results; beside them there are the trials that are open."""
    space = {f"x{i}": Double(minval=0, maxval=1) for i in range(6)} | {
        "x": Double(minval=0, maxval=1)
    }
    pair = search("tpe", "full", space, max_trials=300)
    play = Play(pair, 1).finish()
    assert len(play.created) == 300
    state = pair.state()
    assert state is not None
    assert len(state["sampler"]["points"]) == REMEMBERED


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_earlier_results_replace_the_first_random_trials(sampler: str) -> None:
    """The first trials are near the best earlier ones, and a search that was kept goes on so."""
    if sampler == "gp":
        pytest.importorskip("torch", reason="Optuna's GP needs it")
    earlier = [
        EarlierResult({"x": i / 40, "n": 8, "kind": "adam"}, 9.0, abs(i / 40 - 0.7))
        for i in range(40)
    ]
    one, other = search(sampler, "full"), search(sampler, "full")
    assert one.learn(earlier) == ["learns from 40 of 40 earlier trials"]
    found = [each.hparams["x"] for each in one.start() if isinstance(each, Create)]
    assert all(abs(x - 0.7) < 0.35 for x in found)
    other.restore(json.loads(json.dumps(one.state(), allow_nan=False)))
    for each in (one, other):
        each.validated(0, 9, {"loss": 0.5})
    assert one.exited(0, Exit.COMPLETED) == other.exited(0, Exit.COMPLETED)


@pytest.mark.parametrize("sampler", ["cmaes", "nsgaii", "qmc"])
def test_a_study_that_goes_on_takes_no_trials_of_others(sampler: str) -> None:
    searcher = search(sampler, "full")
    searcher.start()
    with pytest.raises(ConfigError, match="takes no trials that it did not propose; enqueue none"):
        searcher.extend(0, [{"x": 0.5}])
    with pytest.raises(ConfigError, match="this searcher learns nothing"):
        searcher.learn(())
    assert len(searcher.extend(5)) == 0
    assert len(Play(search(sampler, "full"), 1).finish().created) == 30
