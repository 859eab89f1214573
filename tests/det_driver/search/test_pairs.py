"""Samplers and schedules, chosen independently: every pair of them."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_core.config import Categorical, Combined, Const, Double, Int, Length, Log, parse
from det_core.errors import ConfigError, EntrypointError
from det_core.hooks import Plugins
from det_driver.search import Close, Create, Exit, RandomState, Search, combined
from det_driver.search._sobol import Sobol
from det_driver.space import Limits
from det_testing._search_play import Play, give

SPACE: dict[str, Any] = {
    "drop": Double(minval=0, maxval=0.5, step=0.1),
    "lr": Log(minval=-5, maxval=0, count=1),
    "net": {
        "hidden": Int(minval=8, maxval=512, log=True, count=3),
        "kind": Categorical(vals=("a", "b", ["c"])),
    },
    "momentum": Double(minval=0, maxval=1, count=2, when={"net.kind": "a"}),
    "fixed": Const([1, 2]),
}
LENGTH = Length("epochs", 27)
SAMPLERS = ("random", "grid", "sobol", "evolution")
SCHEDULES: dict[str, dict[str, Any]] = {
    "full": {},
    "async_halving": {},
    "async_halving, stopping": {"stop_once": True},
    "async_halving, by time": {"max_length": None, "max_time": 27, "time_metric": "t"},
    "adaptive_asha": {"max_rungs": 3},
    "hyperband": {"max_trials": None, "max_length": Length("epochs", 9)},
}
PAIRS = [pair for pair in itertools.product(SAMPLERS, SCHEDULES) if pair != ("grid", "hyperband")]


def pair(sampler: str, schedule: str, **keys: Any) -> Combined:
    name = schedule.partition(",")[0]
    given = (
        {"max_trials": 48, "max_length": LENGTH, "max_concurrent_trials": 6}
        | SCHEDULES[schedule]
        | keys
    )
    return Combined(metric="loss", sampler=sampler, schedule=name, **given)


def search(config: Combined, seed: int = 0, space: Any = None) -> Search:
    return combined(config, SPACE if space is None else space, seed, Plugins.installed().samplers())


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "schedule"), PAIRS)
@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    share=st.floats(0, 1),
    faults=st.sampled_from([0.0, 0.2]),
    nan=st.sampled_from([0.0, 0.2]),
    early=st.sampled_from([0.0, 0.3]),
)
def test_the_same_events_give_the_same_proposals(
    sampler: str, schedule: str, seed: int, share: float, faults: float, nan: float, early: float
) -> None:
    """From the beginning, and from a state that was kept at any moment."""
    config = pair(sampler, schedule)
    play = Play(search(config, seed), seed, faults=faults, nan=nan, early=early).finish()
    again, restored = (search(config, seed) for _ in range(2))
    moment = min(int(share * len(play.events)), len(play.events) - 1)
    for number, (event, answer) in enumerate(zip(play.events, play.operations, strict=True)):
        assert give(again, event) == answer
        if number > moment:
            assert give(restored, event) == answer
        if number == moment:
            restored.restore(json.loads(json.dumps(again.state(), allow_nan=False)))


@pytest.mark.parametrize(
    "schedule", [schedule for schedule in SCHEDULES if schedule != "hyperband"]
)
@given(st.integers(0, 2**31))
@settings(max_examples=5, deadline=None)
def test_a_grid_is_tried_once_under_any_schedule(schedule: str, seed: int) -> None:
    """Also where some of its points turn out to be invalid."""
    config = pair("grid", schedule, max_trials=None, max_concurrent_trials=16)
    play = Play(
        search(config, seed), seed, faults=0.2, reasons=(Exit.INVALID_HP, Exit.ERRORED)
    ).finish()
    found = Counter(json.dumps(create.hparams, sort_keys=True) for create in play.created)
    assert set(found.values()) == {1}
    # 6 drops, 1 lr, 3 sizes, and 4 choices of kind and momentum
    assert len(found) == 6 * 3 * 4


def test_a_pair_without_a_name_is_read_and_written() -> None:
    section = {
        "sampler": "sobol",
        "schedule": "async_halving",
        "metric": "loss",
        "max_trials": 9,
        "max_length": 9,
    }
    config = parse({"searcher": section}).config.searcher
    assert isinstance(config, Combined)
    assert (config.name, config.schedule, config.num_rungs, config.divisor) == (
        "combined",
        "async_halving",
        3,
        3.0,
    )
    assert parse({"searcher": section | {"name": "combined"}}).config.searcher == config


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"sampler": "grid", "schedule": "hyperband"},
            "of 72 trials, and hyperband makes as many as its brackets need",
        ),
        (
            {"schedule": "hyperband", "max_trials": 5},
            "hyperband makes as many trials as its brackets need; leave it out",
        ),
        ({"schedule": "full", "max_trials": None}, "searcher.max_trials is missing"),
        ({"sampler": "evolutoin"}, "there is no such sampler; did you mean 'evolution'"),
        (
            {"sampler": "sobol", "sampler_options": {"a": 1}},
            "the sampler sobol has none; leave them out",
        ),
        ({"schedule": "hyperband", "max_length": None}, "which needs max_length"),
    ],
)
def test_a_bad_pair_is_a_sentence(keys: dict[str, Any], sentence: str) -> None:
    given = {"sampler": "random", "schedule": "full", "max_trials": 60}
    if keys.get("schedule") == "hyperband":
        given["max_trials"] = None
    given |= keys
    with pytest.raises(ConfigError, match=sentence):
        search(pair(given.pop("sampler"), given.pop("schedule"), **given))


def test_a_sampler_that_is_not_installed_says_whose_it_is() -> None:
    with pytest.raises(ConfigError, match="there is no such sampler; it comes with det-optuna"):
        combined(pair("tpe", "full"), SPACE, 0, {})


def test_a_sampler_of_ones_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.joinpath("my_samplers.py").write_text(
        "from det_driver.search import Sampler\n"
        "class Same(Sampler):\n"
        "    def __init__(self, config, hyperparameters, limits): self.loss = None\n"
        "    def propose(self, trial, rng): return {'lr': self.loss or 1.0}\n"
        "    def validated(self, trial, length, loss): self.loss = loss\n"
        "    def exited(self, trial, reason): pass\n"
        "    def state(self): return {'loss': self.loss}\n"
        "    def restore(self, state): self.loss = state['loss']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    play = Play(search(pair("my_samplers:Same", "async_halving"), 1), 1).finish()
    assert len({create.hparams["lr"] for create in play.created}) > 10
    with pytest.raises(EntrypointError, match="there is no module my_sampler"):
        search(pair("my_sampler:Same", "full"))
    with pytest.raises(
        EntrypointError, match=r"name a class derived from det_driver\.search\.Sampler"
    ):
        search(pair("my_samplers:Other", "full"))
    del sys.modules["my_samplers"]


def test_sobol_fills_the_space_more_evenly_than_chance() -> None:
    """Of 64 points of any two axes, each cell of 8 by 8 has exactly one."""
    space = {f"x{i}": Double(minval=0, maxval=1) for i in range(3)}
    sampler, rng = Sobol(space, Limits(space)), RandomState(3)
    points = [sampler.propose(trial, rng) for trial in range(64)]
    assert len({(int(8 * p["x0"]), int(8 * p["x1"])) for p in points}) == 64
    assert all(len({int(64 * p[name]) for p in points}) == 64 for name in space)


def test_hyperband_with_a_sampler_begins_its_brackets_in_turn() -> None:
    """So a later bracket learns from the first one.

    At most so many trials of a first rung are open.
    """
    play = Play(search(pair("evolution", "hyperband"), 2), 2)
    open_trials: set[int] = set()
    most = 0
    while play.step():
        for operation in play.operations[-1]:
            if isinstance(operation, Create):
                open_trials.add(operation.trial)
            elif isinstance(operation, Close):
                open_trials.discard(operation.trial)
        most = max(most, len([t for t in open_trials if play.trained[t] == 0]))
    assert most <= 6 + 6
    named = Play(
        combined(pair("random", "hyperband", max_concurrent_trials=0), SPACE, 2, {}), 2
    ).finish()
    assert len(play.created) == len(named.created) == 9 + 5 + 3
