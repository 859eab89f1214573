"""The conformance suite's strict model finds each missing item of a Lightning run's state."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.left_out import Fault, noticed, noticed_on_two_ranks

from det_core import Plugins
from det_lightning import numbers, snapshot
from det_lightning.testing import StrictTrial, contents
from det_testing import SAVES_EACH, Run, Runs, differences
from det_testing._play import Cast

Change = Callable[[dict[str, Any], dict[str, Any]], None]
"""Changes Lightning's part of a checkpoint, and det's."""


class Alone(StrictTrial):
    """Reads its data itself, which is quicker than by a worker process."""

    num_workers = 0


def tensor(name: str, value: float) -> Change:
    def leave_out(lightning: dict[str, Any], det: dict[str, Any]) -> None:
        weights = lightning["state_dict"]
        weights[name] = torch.full_like(weights[name], value)

    return leave_out


def versions(lightning: dict[str, Any], det: dict[str, Any]) -> None:
    lightning["state_dict"] = collections.OrderedDict(lightning["state_dict"].items())


def moments(index: int) -> Change:
    def leave_out(lightning: dict[str, Any], det: dict[str, Any]) -> None:
        lightning["optimizer_states"][index]["state"] = {}

    return leave_out


def rate(lightning: dict[str, Any], det: dict[str, Any]) -> None:
    lightning["optimizer_states"][1]["param_groups"][0]["lr"] = 0.05


def schedule(index: int) -> Change:
    def leave_out(lightning: dict[str, Any], det: dict[str, Any]) -> None:
        lightning["lr_schedulers"][index]["last_epoch"] = 0

    return leave_out


def of_callback(**without: Any) -> Change:
    def leave_out(lightning: dict[str, Any], det: dict[str, Any]) -> None:
        ((name, state),) = (
            (name, s) for name, s in lightning["callbacks"].items() if name.startswith("Strict")
        )
        lightning["callbacks"][name] = {**state, **without}

    return leave_out


def flags(key: str) -> Change:
    def leave_out(lightning: dict[str, Any], det: dict[str, Any]) -> None:
        det["flags"] = {name: value for name, value in det["flags"].items() if name != key}

    return leave_out


def of_det(key: str, value: Any) -> Change:
    def leave_out(lightning: dict[str, Any], det: dict[str, Any]) -> None:
        assert det[key] != value
        det[key] = value

    return leave_out


def of_ranks(key: str, value: Any) -> Change:
    """Return what takes an item from each rank."""

    def leave_out(lightning: dict[str, Any], det: dict[str, Any]) -> None:
        assert all(len(own[key]) for own in det["ranks"])
        det["ranks"] = [{**own, key: value} for own in det["ranks"]]

    return leave_out


def generator(name: str) -> Change:
    def leave_out(lightning: dict[str, Any], det: dict[str, Any]) -> None:
        for own in det["ranks"]:
            assert name in own["rng_state"]
            own["rng_state"] = {
                key: value for key, value in own["rng_state"].items() if key != name
            }

    return leave_out


def attribute(name: str) -> Change:
    def leave_out(lightning: dict[str, Any], det: dict[str, Any]) -> None:
        for own in det["ranks"]:
            owner = next(owner for owner, found in own["attributes"].items() if name in found)
            kept = {key: value for key, value in own["attributes"][owner].items() if key != name}
            own["attributes"] = {**own["attributes"], owner: kept}

    return leave_out


def position(lightning: dict[str, Any], det: dict[str, Any]) -> None:
    det["position"] = {"epoch": 1, "batch": 0, "done": 3}


def steps(lightning: dict[str, Any], det: dict[str, Any]) -> None:
    lightning["loops"]["fit_loop"]["epoch_loop.state_dict"] = {"_batches_that_stepped": 0}


LENGTH, AT = 8, 5
"""Within epoch 1: what its start has changed, and gradients that wait, are part of the state."""

KNOWN = "metrics that callbacks know"
"""At the end of an epoch they are all new, where a validation falls there.

So this is noticed one batch before `AT`.
"""

FAULTS: dict[str, Change] = {
    "weights": tensor("model.head.weight", 0.0),
    "versions of modules": versions,
    "statistics of the normalization": tensor("model.norm.running_mean", 0.0),
    "a buffer that was assigned": tensor("model.centre", 0.0),
    "frozen parameters": flags("frozen"),
    "modules in evaluation": flags("evaluating"),
    "moments of the first optimizer": moments(0),
    "moments of the second optimizer": moments(1),
    "options of an optimizer's group": rate,
    "groups that were added": of_det("groups", []),
    "the first schedule": schedule(0),
    "the second schedule": schedule(1),
    "gradients that wait": of_det("gradients", {}),
    "the generator of torch": generator("cpu_rng_state"),
    "the generator of NumPy": generator("np_rng_state"),
    "the generator of Python": generator("random_rng_state"),
    "sums of what is logged": of_ranks("sums", []),
    "metrics of torchmetrics": of_ranks("metric_states", {}),
    KNOWN: of_ranks("known", {}),
    "outputs that the module collects": attribute("losses"),
    "a dict that the module collects": attribute("by_parity"),
    "a count of the module": attribute("seen"),
    "an array of the module": attribute("sums"),
    "what hooks set on the trainer": attribute("gradient_clip_val"),
    "a callback's numbers": of_callback(sums={"count": 0, "drawn": np.zeros(3, np.float32)}),
    "a callback's labels": of_callback(labels={}),
    "a callback's generator": of_callback(generator=np.random.default_rng(5).bit_generator.state),
    "the position": position,
    "steps that loggers count": steps,
}


def in_files(change: Change, *, with_numpy: bool = True) -> Fault:
    def fault(path: Path) -> None:
        lightning, det = snapshot.read(path)
        found = det.pop("numpy")
        whole = numbers.with_numpy(lightning, found) if with_numpy else lightning
        change(whole, det)
        snapshot.write(whole, det, path)

    return fault


ALL = {
    "nothing": in_files(lambda lightning, det: None),
    **{name: in_files(change) for name, change in FAULTS.items()},
    "types of NumPy's numbers": in_files(lambda lightning, det: None, with_numpy=False),
}


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, Run]:
    """A run that was left alone."""
    run = Runs(Plugins.installed(strict=True), Alone, tmp_path_factory.mktemp("whole"))
    return run, run(LENGTH, schedule=SAVES_EACH)


@pytest.mark.sample(8)
@pytest.mark.parametrize("fault", ALL)
def test_an_item_that_is_left_out_is_found(whole: tuple[Runs, Run], fault: str) -> None:
    """By a number that differs, or as the resumed run is refused."""
    at = AT - 1 if fault == KNOWN else AT
    found = noticed(*whole, at, LENGTH, contents, ALL[fault])
    assert bool(found) == (fault != "nothing"), found


# On two ranks


def of_second(key: str, *keys: str) -> Change:
    """Return what gives the second rank the first one's state."""

    def leave_out(lightning: dict[str, Any], det: dict[str, Any]) -> None:
        first, second = det["ranks"]
        if keys:
            found = {**second[key], **{name: first[key][name] for name in keys}}
        else:
            found = first[key]
        assert differences(found, second[key])
        det["ranks"] = [first, {**second, key: found}]

    return leave_out


REFUSED = ("groups that were added", "the position")
ON_RANKS = {
    # Errors of Lightning's and torch's refuse two others, which end the ranks.
    **{name: ALL[name] for name in ALL if name not in (KNOWN, *REFUSED)},
    "the generator of torch, of the second rank": in_files(of_second("rng_state", "cpu_rng_state")),
    "the generator of NumPy, of the second rank": in_files(of_second("rng_state", "np_rng_state")),
    "the generator of Python, of the second rank": in_files(
        of_second("rng_state", "random_rng_state")
    ),
    "sums of what the second rank logs": in_files(of_second("sums")),
    "metrics of torchmetrics of the second rank": in_files(of_second("metric_states")),
    "attributes of the second rank": in_files(of_second("attributes")),
    "buffers of the second rank": in_files(of_second("buffers", "own")),
}


@pytest.fixture(scope="module")
def found_on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("ranks")
    cast = Cast(trial=Alone, framework="lightning", hooks="det_lightning._hooks", backend="native")
    run = Runs(Plugins.installed(strict=True), Alone, folder)
    return noticed_on_two_ranks(run, cast, AT, LENGTH, contents, ON_RANKS, folder)


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("fault", ON_RANKS)
def test_an_item_that_is_left_out_is_found_on_two_ranks(
    found_on_two_ranks: dict[str, list[str]], fault: str
) -> None:
    assert bool(found_on_two_ranks[fault]) == (fault != "nothing"), found_on_two_ranks[fault]
