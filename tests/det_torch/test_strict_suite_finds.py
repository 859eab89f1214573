"""The conformance suite's strict model finds an adapter that leaves one item of the state out."""

from __future__ import annotations

import collections
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.left_out import Fault, noticed, noticed_on_two_ranks

from det_core import Plugins
from det_testing import SAVES_EACH, Run, Runs, differences
from det_testing._play import Cast
from det_torch import state
from det_torch.testing import StrictTrial, contents


def without(*keys: str) -> Callable[[dict[str, Any]], None]:
    """Return what leaves an entry out of the contents, or of a dict within them."""

    def leave_out(saved: dict[str, Any]) -> None:
        inner = saved
        for key in keys[:-1]:
            inner[key] = dict(inner[key])
            inner = inner[key]
        del inner[keys[-1]]

    return leave_out


def moments(index: int) -> Callable[[dict[str, Any]], None]:
    def leave_out(saved: dict[str, Any]) -> None:
        saved["optimizers_state_dict"][index] = {
            **saved["optimizers_state_dict"][index],
            "state": {},
        }

    return leave_out


def weights_of_the_second_model(saved: dict[str, Any]) -> None:
    saved["models_state_dict"][1] = {
        name: each * 0 for name, each in saved["models_state_dict"][1].items()
    }


def rate(saved: dict[str, Any]) -> None:
    saved["optimizers_state_dict"][1]["param_groups"][0]["lr"] = 0.05


def labels(saved: dict[str, Any]) -> None:
    saved["callbacks"] = {"strict": {**saved["callbacks"]["strict"], "labels": {}}}


def schedule(index: int) -> Callable[[dict[str, Any]], None]:
    def leave_out(saved: dict[str, Any]) -> None:
        saved["lr_schedulers_state_dict"][index] = {
            **saved["lr_schedulers_state_dict"][index],
            "last_epoch": 0,
        }

    return leave_out


def tensor(name: str, value: float) -> Callable[[dict[str, Any]], None]:
    """Return what saves a tensor of the first model as it was in the beginning."""

    def leave_out(saved: dict[str, Any]) -> None:
        weights = saved["models_state_dict"][0]
        weights[name] = torch.full_like(weights[name], value)

    return leave_out


def versions(saved: dict[str, Any]) -> None:
    saved["models_state_dict"] = [
        collections.OrderedDict(weights.items()) for weights in saved["models_state_dict"]
    ]


def generator_of_a_callback(saved: dict[str, Any]) -> None:
    fresh = np.random.default_rng(5).bit_generator.state
    saved["callbacks"] = {"strict": {**saved["callbacks"]["strict"], "generator": fresh}}


LENGTH, AT = 6, 4
"""The first batch of epoch 1.

What its start has changed, and gradients that wait, are part of the state.
"""

OF_RANKS = ("the generator of torch", "the generator of NumPy", "the generator of Python")
"""Items that each of several ranks has of its own."""

FAULTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "weights": tensor("head.weight", 0.0),
    "weights of the second model": weights_of_the_second_model,
    "options of an optimizer's group": rate,
    "frozen parameters": without("frozen"),
    "modules in evaluation": without("evaluating"),
    "gradients that wait": without("gradients"),
    "moments of the first optimizer": moments(0),
    "moments of the second optimizer": moments(1),
    "groups that were added": without("optimizer_groups"),
    "a schedule by steps": schedule(0),
    "a schedule by batches": schedule(1),
    "steps that a schedule has counted": without("optimizer_steps"),
    "the scaler": without("scaler_state_dict"),
    "versions of modules": versions,
    "statistics of the normalization": tensor("norm.running_mean", 0.0),
    "a buffer that was assigned": tensor("centre", 0.0),
    "the generator of torch": without("rng_state", "cpu_rng_state"),
    "the generator of NumPy": without("rng_state", "np_rng_state"),
    "the generator of Python": without("rng_state", "random_rng_state"),
    "the callbacks' state": without("callbacks"),
    "the generator of a callback": generator_of_a_callback,
    "labels that a callback has numbered": labels,
}


class Alone(StrictTrial):
    """Reads its data itself, which is quicker than by a worker process."""

    num_workers = 0


def in_file(fault: Callable[[dict[str, Any]], None]) -> Fault:
    def change(path: Path) -> None:
        found = contents(path)
        fault(found)
        state.save(found, path)

    return change


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, Run]:
    """A run that was left alone."""
    run = Runs(Plugins.installed(strict=True), Alone, tmp_path_factory.mktemp("whole"))
    return run, run(LENGTH, schedule=SAVES_EACH)


def test_nothing_is_found_where_nothing_is_left_out(whole: tuple[Runs, Run]) -> None:
    assert noticed(*whole, AT, LENGTH, contents, in_file(lambda found: None)) == []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings(
    "ignore:the trial has a gradient scaler, but the checkpoint has no state"
)
@pytest.mark.filterwarnings("ignore:the checkpoint holds no state of the callback")
def test_an_item_that_is_left_out_is_found(whole: tuple[Runs, Run], fault: str) -> None:
    """By a number that differs, or as the resumed run is refused."""
    assert noticed(*whole, AT, LENGTH, contents, in_file(FAULTS[fault]))


# On two ranks


def of_second(key: str, *keys: str) -> Callable[[dict[str, Any]], None]:
    """Return what gives the second rank the first one's state."""

    def leave_out(saved: dict[str, Any]) -> None:
        states = saved[key]
        mine, other = dict(states[1]), states[0]
        for name in keys or list(mine):
            assert differences(mine[name], other[name])
            mine[name] = other[name]
        saved[key] = [other, mine]

    return leave_out


ON_RANKS = {
    "nothing": lambda saved: None,
    "the generators of each rank": without("rank_rng_states"),
    "the generator of torch, of the second rank": of_second("rank_rng_states", "cpu_rng_state"),
    "the generator of NumPy, of the second rank": of_second("rank_rng_states", "np_rng_state"),
    "the generator of Python, of the second rank": of_second("rank_rng_states", "random_rng_state"),
    **{name: fault for name, fault in FAULTS.items() if name not in OF_RANKS},
}


@pytest.fixture(scope="module")
def found_on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("ranks")
    cast = Cast(trial=Alone, framework="torch", hooks="det_torch._hooks", backend="native")
    run = Runs(Plugins.installed(strict=True), Alone, folder)
    faults = {name: in_file(fault) for name, fault in ON_RANKS.items()}
    return noticed_on_two_ranks(run, cast, AT, LENGTH, contents, faults, folder)


@pytest.mark.process
@pytest.mark.parametrize("fault", ON_RANKS)
def test_an_item_that_is_left_out_is_found_on_two_ranks(
    found_on_two_ranks: dict[str, list[str]], fault: str
) -> None:
    assert bool(found_on_two_ranks[fault]) == (fault != "nothing"), found_on_two_ranks[fault]
