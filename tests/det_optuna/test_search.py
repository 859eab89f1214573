from __future__ import annotations

import json
import math
import subprocess
import sys
from statistics import median

import pytest
from optuna import Study

from det_core.config import Const, Double, Int
from det_core.errors import ConfigError, MetricError
from det_driver.search import Close, Create, Exit, Shutdown, Train
from det_optuna.search import PATIENCE

SAMPLERS = ["tpe", "gp", "cmaes", "qmc", "nsgaii", "random"]
BOWL = {"x": Double(minval=-1, maxval=1), "y": Double(minval=-1, maxval=1)}


def bowl(create: Create) -> dict[str, float]:
    return {"loss": (create.hparams["x"] - 0.3) ** 2 + (create.hparams["y"] + 0.6) ** 2}


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "trials"), [("tpe", 60), ("cmaes", 60), ("gp", 14)])
def test_a_sampler_that_learns_leaves_bad_regions(make, train, sampler: str, trials: int) -> None:
    if sampler == "gp":
        pytest.importorskip("torch", reason="Optuna's GP needs it")
    search = make(
        0, BOWL, sampler=sampler, startup_trials=10, max_trials=trials, max_concurrent_trials=2
    )
    losses = [bowl(create)["loss"] for create in train(search, bowl)]
    assert median(losses[-trials // 4 :]) < median(losses[:10]) / 3


def test_a_larger_metric_can_be_the_better_one(make, train) -> None:
    search = make(0, BOWL, max_trials=60, smaller_is_better=False)
    created = train(search, lambda create: {"loss": -bowl(create)["loss"]})
    assert min(bowl(create)["loss"] for create in created) < 0.02


def test_trials_train_to_the_length_and_are_closed(make) -> None:
    search = make(max_trials=1)
    assert search.start()[1] == Train(0, 10)
    assert search.validated(0, 9, {"loss": 1.0}) == []
    assert search.validated(0, 10, {"loss": 1.0}) == [Close(0)]
    assert search.exited(0, Exit.COMPLETED) == [Shutdown()]


def test_a_time_metric_says_when_a_trial_has_trained_enough(make) -> None:
    search = make(max_trials=1, max_length=None, max_time=100, time_metric="batches")
    assert search.start()[1] == Train(0, 100)
    assert search.validated(0, 5, {"loss": 1.0, "batches": 99}) == []
    with pytest.raises(
        MetricError, match=r"searcher.time_metric is 'batches', which the trial reports as NaN"
    ):
        search.validated(0, 5, {"loss": 1.0, "batches": math.nan})
    assert search.validated(0, 6, {"loss": 1.0, "batches": 101}) == [Close(0)]


def test_no_more_trials_are_open_than_allowed(make) -> None:
    search = make(max_trials=5, max_concurrent_trials=2)
    assert [op.trial for op in search.start() if isinstance(op, Create)] == [0, 1]
    search.validated(1, 10, {"loss": 1.0})
    assert [op.trial for op in search.exited(1, Exit.COMPLETED) if isinstance(op, Create)] == [2]


def test_a_trial_that_ends_by_itself_counts_with_its_last_result(make) -> None:
    """As a script does that is given no length."""
    search = make(max_trials=1, max_length=None)
    search.start()
    search.validated(0, 3, {"loss": 1.0})
    search.validated(0, 6, {"loss": 0.5})
    search.exited(0, Exit.COMPLETED)
    assert told(search) == [["tell", 0, [0.5]]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_a_result_that_is_no_use_sets_the_trial_aside(make, value: float) -> None:
    search = make(max_trials=1)
    search.start()
    search.validated(0, 10, {"loss": value})
    assert told(search) == [["set_aside", 0]]


@pytest.mark.parametrize("reason", [Exit.ERRORED, Exit.CANCELED, Exit.USER_STOPPED])
def test_a_trial_that_ended_early_tells_the_sampler_nothing(make, reason: Exit) -> None:
    search = make(max_trials=1)
    search.start()
    search.validated(0, 5, {"loss": 1.0})
    search.exited(0, reason)
    assert told(search) == [["forget", 0]]


def test_invalid_trials_are_replaced_and_tpe_avoids_their_region(make, train) -> None:
    def half(create: Create) -> dict[str, float] | Exit:
        return Exit.INVALID_HP if create.hparams["x"] < 0 else bowl(create)

    created = train(make(1, BOWL, max_trials=80, startup_trials=10), half)
    valid = [create.hparams["x"] >= 0 for create in created]
    assert sum(valid) == 80
    assert sum(valid[-40:]) >= 30


def test_model_that_insists_on_invalid_values_yields_to_chance(make, train) -> None:
    """CMA-ES hears of no result and would go on to suggest the same region for ever."""

    def corner(create: Create) -> dict[str, float] | Exit:
        return bowl(create) if min(create.hparams.values()) > 0.6 else Exit.INVALID_HP

    search = make(0, BOWL, sampler="cmaes", startup_trials=0, max_trials=5, max_concurrent_trials=1)
    created = train(search, corner)
    assert sum(isinstance(corner(create), dict) for create in created) == 5
    assert ["draw"] in search.state()["method"]["study"]
    assert len(created) > PATIENCE


def test_the_metrics_that_are_missing_are_named(make) -> None:
    search = make(sampler="nsgaii", second_metric="size")
    search.start()
    with pytest.raises(
        MetricError,
        match=r"searcher.metric is 'loss', which the trial does not report; reported: f1",
    ):
        search.validated(0, 10, {"f1": 1.0})
    with pytest.raises(
        MetricError, match=r"searcher.second_metric is 'size', which the trial does not report"
    ):
        search.validated(0, 10, {"loss": 1.0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"max_time": 5},
            "searcher has both max_length and max_time or time_metric; give one of the two ways",
        ),
        ({"time_metric": "batches"}, "searcher has both max_length and max_time or time_metric"),
        (
            {"max_length": None, "max_time": 5},
            "searcher.time_metric is missing; name the validation metric that counts",
        ),
        (
            {"max_length": None, "time_metric": "b"},
            "searcher.max_time is missing; say how long trials train",
        ),
    ],
)
def test_lengths_that_contradict_one_another_are_named(make, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**changes)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("space", [{}, {"one": Const(1)}, {"same": Int(minval=3, maxval=3)}])
def test_a_space_without_choice_is_searched_all_the_same(
    make, train, sampler: str, space: dict
) -> None:
    if sampler == "gp":
        pytest.importorskip("torch", reason="Optuna's GP needs it")
    created = train(
        make(0, space, sampler=sampler, max_trials=12), lambda create: {"loss": create.seed / 2**31}
    )
    assert len(created) == 12


@pytest.mark.sample(2)
@pytest.mark.process
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_another_process_with_other_hashes_searches_alike(sampler: str) -> None:
    """Or a driver that goes on after it was killed would not find its trials again."""
    if sampler == "gp":
        pytest.importorskip("torch", reason="Optuna's GP needs it")
    first, second = (
        subprocess.run(
            [sys.executable, "-c", ELSEWHERE, sampler],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        for seed in ("1", "2")
    )
    assert len(json.loads(first.stdout)) == 12
    assert first.stdout == second.stdout
    assert first.stderr == ""


ELSEWHERE = """
import json, sys
from det_core.config import Categorical, Double, Int, Length, Log
from det_driver.search import Create, Exit
from det_optuna import Optuna, make

space = {
    "lr": Log(minval=-5, maxval=0), "a": {"n": Int(minval=1, maxval=99), "b": Double(minval=0, maxval=1)},
    "kind": Categorical(vals=("x", "y")),
}
options = {"population_size": 4} if sys.argv[1] == "nsgaii" else {}
startup = 8 if sys.argv[1] in ("tpe", "gp", "cmaes") else None
config = Optuna(
    metric="loss", sampler=sys.argv[1], max_trials=12, max_length=Length("batches", 1), sampler_options=options,
    startup_trials=startup,
)
search = make(config, space, 5)
queue, seen = search.start(), []
while queue:
    operation = queue.pop(0)
    if isinstance(operation, Create):
        seen.append(operation.hparams)
        search.validated(operation.trial, 1, {"loss": operation.hparams["lr"] + operation.hparams["a"]["n"]})
        queue += search.exited(operation.trial, Exit.COMPLETED)
print(json.dumps(seen))
"""


def told(search) -> list[list]:
    return [each for each in search.state()["method"]["study"] if each[0] not in ("ask", "draw")]


def test_the_randomness_of_numpy_and_torch_is_left_alone(make, train) -> None:
    numpy, torch = (
        pytest.importorskip("numpy"),
        pytest.importorskip("torch", reason="Optuna's GP needs it"),
    )
    numpy.random.seed(1)
    before = numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for sampler in SAMPLERS:
        train(make(0, BOWL, sampler=sampler, max_trials=12), bowl)
    assert (numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_that_is_taken_up_again_suggests_nothing_twice(
    make, train, sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trials are put back and its random numbers go on."""
    settings = {"sampler": sampler, "max_trials": 60, "max_concurrent_trials": 2}
    asked, ask = [], Study.ask
    monkeypatch.setattr(
        Study, "ask", lambda study, *spaces: asked.append(study) or ask(study, *spaces)
    )
    search = make(0, BOWL, **settings)
    train(search, bowl)
    assert len(asked) == 60
    again = make(0, BOWL, **settings)
    again.restore(json.loads(json.dumps(search.state())))
    assert again.state() == search.state()
    assert len(asked) == 60
