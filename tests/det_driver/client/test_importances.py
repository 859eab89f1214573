"""What trials say of hyperparameters.

Which were chosen, how much each explains, how good trials are along one.
"""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path

import pytest

from det_core.config import Categorical, Const, Double, Int, Log, to_json
from det_driver.cli._console import what_mattered
from det_driver.client import Client, Mattered, Slice, Space, importances, slices
from det_driver.config import load
from det_driver.store import Store

SPACE = Space(
    {
        "net": {"lr": Log(minval=-4, maxval=0), "width": Const(val=64)},
        "data": Const(val={"size": 3}),
        "kind": Categorical(vals=("a", "b")),
    }
)


def test_searched_hyperparameters_are_separate_from_constants() -> None:
    """Names are dotted and in the order of the configuration."""
    hparams = {"kind": "a", "net": {"width": 64, "lr": 0.1}, "data": {"size": 3}}
    assert SPACE.chosen(hparams) == {"net.lr": 0.1, "kind": "a"}
    assert list(SPACE.chosen(hparams)) == ["net.lr", "kind"]
    assert SPACE.constants(hparams) == {"net.width": 64, "data.size": 3}


def test_a_constant_that_a_searcher_altered_was_chosen() -> None:
    hparams = {"kind": "a", "net": {"width": 32, "lr": 0.1}, "data": {"size": 3}}
    assert SPACE.chosen(hparams) == {"net.lr": 0.1, "kind": "a", "net.width": 32}
    assert SPACE.names([{"kind": "b"}, hparams]) == ["net.lr", "kind", "net.width"]


def test_only_what_is_declared_log_is_logarithmic() -> None:
    assert [name for name in ("net.lr", "kind", "net.width") if SPACE.logarithmic(name)] == [
        "net.lr"
    ]
    assert not Space({"x": Double(minval=1e-9, maxval=1.0)}).logarithmic("x")


def test_names_are_shortened_as_far_as_they_stay_apart() -> None:
    names = Space.short(["net.lr", "head.lr", "net.width", "seed"])
    assert names == {"net.lr": "net.lr", "head.lr": "head.lr", "net.width": "width", "seed": "seed"}


def test_decisive_hyperparameter_is_important_and_noise_is_not() -> None:
    draw = random.Random(1)
    trials = []
    for _ in range(120):
        x, kind, noise = draw.random(), draw.choice("ab"), draw.random()
        trials.append(
            ({"noise": noise, "kind": kind, "x": x}, 3 * x + (kind == "b") + 0.1 * draw.random())
        )
    found = importances(trials)
    assert list(found)[:2] == ["x", "kind"]
    assert found["x"] > 0.6
    assert 0.02 < found["kind"] < 0.3
    assert found["noise"] < 0.08


def test_importances_do_not_depend_on_scaling() -> None:
    draw = random.Random(2)
    trials = [({"x": draw.random(), "y": draw.random()}, draw.random()) for _ in range(40)]
    stretched = [
        ({"x": math.exp(9 * h["x"]), "y": h["y"]}, 1e6 * metric**3) for h, metric in trials
    ]
    assert importances(stretched) == pytest.approx(importances(trials))


@pytest.mark.parametrize(
    "trials", [[({"x": i}, float(i)) for i in range(7)], [({"x": i}, 1.0) for i in range(20)], []]
)
def test_too_few_trials_or_none_that_differ_say_nothing(trials) -> None:
    assert importances(trials) == {}


def test_trials_of_a_halving_search_are_compared_at_one_length(tmp_path: Path) -> None:
    """What trains longer is better for that alone, whatever the rate.

    Within a rung the rate decides.
    """
    text = (
        "name: s\nentrypoint: x:T\nhyperparameters:\n  lr: {type: double, minval: 0, maxval: 1}\n "
        " luck: {type: double, minval: 0, maxval: 1}\nsearcher: {name: async_halving, metric: loss,"
        " max_trials: 24, num_rungs: 2, divisor: 4, max_length: 40}\n"
    )
    with Store(tmp_path) as store:
        id = store.experiments.create(
            name="s", config=to_json(load(text).config), metric="loss", entrypoint="x:T"
        ).id
        with store.lock(id):
            for i in range(24):
                # The luck of a trial decides whether it is trained longer, and that its best value.
                lr, luck = (i * 7 % 24) / 24, i / 24
                trial = store.trials.create(id, i, {"lr": lr, "luck": luck}, i)
                run = store.runs.begin(trial.id)
                for length in (10, 40)[: 1 + (i >= 18)]:
                    value = lr if length == 10 else lr - 2
                    told = {
                        "trial": i,
                        "length": length,
                        "batches": length,
                        "metrics": {"loss": value},
                    }
                    store.metrics.report(trial.id, run.id, "validation", length, {"loss": value})
                    store.journal.append(id, json.dumps({"type": "validated", **told}).encode())
        experiment = Client(tmp_path).get_experiment(id)
        mattered = experiment.what_mattered()
        assert (mattered.trials, mattered.length) == (24, 10)
        assert mattered.shares["lr"] > 0.9
        assert mattered.shares["luck"] < 0.1
        assert experiment.importances() == mattered.shares


def test_what_is_said_to_have_mattered_is_the_whole() -> None:
    assert (
        what_mattered({"a": 0.62, "b": 0.1, "c": 0.001}) == "a 62%, b 10%; interplay and chance 28%"
    )
    assert what_mattered({"a": 0.9, "b": 0.9}) == "a 50%, b 50%"
    assert what_mattered(dict.fromkeys("abc", 1 / 3)) == "a 34%, b 33%, c 33%"
    assert what_mattered(dict.fromkeys("ab", 0.335)) == "a 34%, b 33%; interplay and chance 33%"
    assert what_mattered({"a": 0.0}) == "none of the hyperparameters"


def test_percents_of_any_shares_are_100_together() -> None:
    draw = random.Random(3)
    for count in range(1, 40):
        shares = {str(i): draw.random() ** 3 for i in range(count)}
        percents, rest = Mattered(shares, count, None).percents
        assert sum(percents.values()) + rest == 100
        assert min(*percents.values(), rest) >= 0


def test_slices_are_equal_counts_of_numbers_or_single_names() -> None:
    trials = [(float(i), float((i - 12) ** 2)) for i in range(20)]
    found = slices(trials, smaller_is_better=True)
    assert [(each.least, each.greatest, each.trials) for each in found] == [
        (0, 3, 4),
        (4, 7, 4),
        (8, 11, 4),
        (12, 15, 4),
        (16, 19, 4),
    ]
    assert min(found, key=lambda each: each.best) == Slice(12.0, 15.0, 4, 0.0, 2.5)
    named = slices([("a", 1.0), ("b", 2.0), ("b", 4.0), (None, 0.5)], smaller_is_better=False)
    assert named == [
        Slice("b", "b", 2, 4.0, 3.0),
        Slice("a", "a", 1, 1.0, 1.0),
        Slice(None, None, 1, 0.5, 0.5),
    ]


@pytest.mark.slow
def test_what_matters_among_many_trials_is_found_in_a_moment() -> None:
    """Where each step looks at all that went before, it takes minutes."""
    trials = [
        ({"lr": n * 7919 % 10007, "units": n % 64}, float(n * 7919 % 10007)) for n in range(20_000)
    ]
    began = time.process_time()
    found = importances(trials)
    assert time.process_time() - began < 3
    assert found["lr"] > 0.9
    assert found["units"] < 0.1


def test_conditional_hyperparameter_does_not_explain_its_parent() -> None:
    """A momentum that only one of two optimizers has does not make that optimizer better."""
    draw = random.Random(4)
    trials = []
    for _ in range(200):
        kind = draw.choice(["sgd", "adam"])
        momentum = {"momentum": draw.random()} if kind == "sgd" else {}
        trials.append(({"kind": kind, **momentum}, (kind == "adam") + 0.1 * draw.random()))
    found = importances(trials)
    assert found["kind"] > 0.6
    assert found["momentum"] < 0.05
    assert not Space({"n": Int(minval=1, maxval=9)}).logarithmic("n")
    assert Space({"n": Int(minval=1, maxval=9, log=True)}).logarithmic("n")
