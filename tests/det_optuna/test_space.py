from __future__ import annotations

import json

import pytest

from det_core.config import Categorical, Const, Double, Int, Log
from det_core.errors import ConfigError
from det_driver.search import Create, Exit, Search
from det_optuna.space import Space


def test_every_kind_of_hyperparameter_is_drawn_from_its_range(make, train) -> None:
    created = train(make(3, max_trials=60, sampler="random"), lambda create: {"loss": 0.5})
    hparams = [create.hparams for create in created]
    assert list(hparams[0]) == ["dropout", "epochs", "lr", "net"]
    assert all(1e-5 <= each["lr"] <= 1 for each in hparams)
    assert min(each["lr"] for each in hparams) < 1e-4
    assert all(0 <= each["dropout"] <= 0.7 for each in hparams)
    assert all(
        type(each["net"]["hidden"]) is int and 8 <= each["net"]["hidden"] <= 512 for each in hparams
    )
    kinds = [each["net"]["kind"] for each in hparams]
    assert all(kind in kinds for kind in ("a", [1, 2], None))
    assert {each["epochs"] for each in hparams} == {3}


def test_a_logarithmic_range_is_of_exponents_to_its_base() -> None:
    space = Space({"width": Log(minval=3, maxval=9, base=2)})
    assert (space.distributions["width"].low, space.distributions["width"].high) == (3, 9)
    assert space.hparams({"width": 5.0}) == {"width": 32}


def test_nested_ranges_have_the_names_of_their_places() -> None:
    inner = {"layers": Int(minval=1, maxval=4), "act": Categorical(vals=("relu", "elu"))}
    space = Space({"net": {"body": inner, "bias": Const(True)}, "lr": Double(minval=0, maxval=1)})
    assert list(space.distributions) == ["lr", "net.body.act", "net.body.layers"]
    params = {"lr": 0.5, "net.body.act": 1, "net.body.layers": 2}
    assert space.hparams(params) == {
        "lr": 0.5,
        "net": {"bias": True, "body": {"act": "elu", "layers": 2}},
    }


def test_two_ranges_of_one_name_are_refused() -> None:
    one = Double(minval=0, maxval=1)
    with pytest.raises(
        ConfigError, match=r"hyperparameters.a.b is there twice, once nested; rename one of them"
    ):
        Space({"a.b": one, "a": {"b": one}})


def test_values_are_not_shared_between_trials(make, train) -> None:
    space = {"list": Const([1]), "kind": Categorical(vals=([1], [1]))}

    def spoil(create: Create) -> dict[str, float]:
        assert create.hparams == {"list": [1], "kind": [1]}
        create.hparams["list"].append(2)
        create.hparams["kind"].append(2)
        return {"loss": 1.0}

    train(make(0, space, max_trials=12), spoil)


@pytest.mark.parametrize("sampler", ["tpe", "cmaes", "nsgaii"])
def test_conditions_steps_and_constraints_are_kept(make, train, sampler: str) -> None:
    """And a search that is restored from any state proposes the same."""
    space = {
        "drop": Double(minval=0, maxval=0.5, step=0.1),
        "hidden": Int(minval=8, maxval=512, log=True),
        "kind": Categorical(vals=("sgd", "adam")),
        "momentum": Double(minval=0, maxval=1, when={"kind": "sgd"}),
        "nesterov": Categorical(vals=(True, False), when={"kind": "sgd"}),
        "size": Categorical(vals=("s", "m", "l"), ordered=True),
    }

    def made() -> Search:
        return make(
            2,
            space,
            sampler=sampler,
            max_trials=24,
            max_concurrent_trials=1,
            constraints=("hidden > 20",),
        )

    search = made()
    created = train(search, lambda create: {"loss": create.hparams["hidden"]})
    for create in created:
        hparams = create.hparams
        assert 20 < hparams["hidden"] <= 512
        assert hparams["drop"] in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
        assert ("momentum" in hparams) == ("nesterov" in hparams) == (hparams["kind"] == "sgd")
        assert hparams["size"] in ("s", "m", "l")
    assert len(created) == 24
    assert search.limits.refused
    first = made()
    half = train_some(first, 12)
    again = made()
    again.restore(json.loads(json.dumps(first.state())))
    for trial in range(11, 20):
        one, other = (
            [*s.validated(trial, 10, {"loss": 1.0 / (trial + 1)}), *s.exited(trial, Exit.COMPLETED)]
            for s in (first, again)
        )
        assert one == other
    assert half


def train_some(search: Search, count: int) -> list[Create]:
    """Take the first trials to their end but for the last."""
    queue, created = search.start(), []
    while len(created) < count:
        operation = queue.pop(0)
        if isinstance(operation, Create):
            created.append(operation)
            if len(created) < count:
                queue += search.validated(operation.trial, 10, {"loss": float(operation.trial % 5)})
                queue += search.exited(operation.trial, Exit.COMPLETED)
    return created
