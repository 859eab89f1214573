from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from det_core.config import Categorical, Const, Double, Int, Length, Log, Random
from det_driver.search import Create, RandomState, make
from det_driver.search._sampling import sampler

SPACE = {
    "z": Int(minval=-3, maxval=300),
    "net": {"width": Categorical(vals=(1, "two", [3])), "depth": Int(minval=1, maxval=1), "a": {}},
    "lr": Log(minval=-4, maxval=-1),
    "const": Const(val={"any": ["thing"]}),
    "drop": Double(minval=0.1, maxval=0.7),
    "base2": Log(minval=1, maxval=9, base=2),
}


def numpys(rng: np.random.RandomState) -> dict[str, object]:
    """Draw from SPACE as Determined does, with the nested keys sorted too."""
    base2 = 2 ** rng.uniform(1, 9)
    drop = rng.uniform(0.1, 0.7)
    lr = 10 ** rng.uniform(-4, -1)
    width = [1, "two", [3]][rng.randint(0, 3)]
    z = -3 + rng.randint(0, 304)
    net = {"a": {}, "depth": 1, "width": width}
    return {"base2": base2, "const": {"any": ["thing"]}, "drop": drop, "lr": lr, "net": net, "z": z}


@given(st.integers(0, 2**32 - 1))
def test_hyperparameters_are_drawn_as_numpy_does_in_sorted_order(seed: int) -> None:
    """The order is sorted at every depth of nesting."""
    ours, rng = RandomState(seed), np.random.RandomState(seed)
    draw = sampler(SPACE)
    for _ in range(3):
        assert draw(ours) == numpys(rng)


@given(st.integers(0, 2**32 - 1))
def test_each_trial_draws_hyperparameters_then_an_id_then_a_seed(seed: int) -> None:
    rng = np.random.RandomState(seed)
    config = Random(
        metric="loss", max_trials=3, max_concurrent_trials=0, max_length=Length("batches", 1)
    )
    for create in make(config, SPACE, seed).start():
        if isinstance(create, Create):
            assert create.hparams == numpys(rng)
            rng.bytes(16)
            assert create.seed == rng.randint(0, 2**31)


def test_the_first_trials_of_a_seed_are_these() -> None:
    """Written down, so that a change of numpy or of Python would show."""
    space = {"lr": Log(minval=-5, maxval=0), "hidden": Int(minval=8, maxval=512)}
    config = Random(metric="loss", max_trials=2, max_length=Length("batches", 1))
    first, _, second, _ = make(config, space, 0).start()
    rng = np.random.RandomState(0)
    expected = []
    for _ in range(2):
        hidden = 8 + rng.randint(0, 505)
        lr = 10 ** rng.uniform(-5, 0)
        rng.bytes(16)
        expected.append(({"hidden": hidden, "lr": lr}, rng.randint(0, 2**31)))
    assert [(first.hparams, first.seed), (second.hparams, second.seed)] == expected
    assert first.hparams["hidden"] == 180


def test_trials_do_not_share_what_they_are_given() -> None:
    draw = sampler({"layers": Const(val=[1, 2])})
    first, second = draw(RandomState(0)), draw(RandomState(0))
    first["layers"].append(3)
    assert second == {"layers": [1, 2]}
