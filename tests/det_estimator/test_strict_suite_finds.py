"""The conformance suite's strict model finds an adapter of Estimator that leaves one item out."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from det_core import DetError, Plugins
from det_estimator.adapter import STATE_FILE, EstimatorAdapter
from det_estimator.load import find_variables, tensors
from det_estimator.testing import StrictTrial, contents
from det_testing import SAVES_EACH, Run, Runs, resumed_differences

AT = 5
"""The second batch of epoch 1, after which gradients wait for those of the next batch."""
Fault = Callable[[Path], None]


def variables(part: str) -> Fault:
    """Return what sets all variables to 0 whose names contain a part."""

    def change(folder: Path) -> None:
        prefix, found = find_variables(folder), tensors(folder)
        assert any(part in name and np.any(value) for name, value in found.items())
        values = [np.zeros_like(value) if part in name else value for name, value in found.items()]
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=list(found),
            shape_and_slices=[""] * len(found),
            tensors=values,
        )

    return change


def of_rank(name: str, value: Callable[[Any], Any] | None = None) -> Fault:
    """Return what changes or deletes an entry of the state of the rank."""

    def change(folder: Path) -> None:
        file = folder / STATE_FILE
        state = json.loads(file.read_text())
        entry = state["ranks"][0]
        *keys, last = name.split("/")
        for key in keys:
            entry = entry[key]
        if value is None:
            del entry[last]
        else:
            entry[last] = value(entry[last])
        file.write_text(json.dumps(state))

    return change


def hook(name: str, value: Any) -> Fault:
    """Return what gives an entry of the hook's state another value."""

    def change(folder: Path) -> None:
        file = folder / "hook.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))

    return change


def counts(kept: Callable[[str], bool]) -> Callable[[Any], Any]:
    return lambda found: {name: count for name, count in found.items() if kept(name)}


FAULTS: dict[str, Fault] = {
    "weights": variables("backbone/kernel"),
    "moments of Adam": variables("/Adam"),
    "powers of Adam": variables("beta1_power"),
    "gradients that wait": variables("det_gradients/head"),
    "momentum": variables("/Momentum"),
    "the average of weights": variables("/ExponentialMovingAverage"),
    "steps, by which a schedule goes": variables("global_step"),
    "statistics of the normalization": variables("moving_mean"),
    "a variable that is assigned": variables("centre"),
    "what is drawn in loops": of_rank("random_ops", counts(lambda name: name != "in loops")),
    "what is drawn outside of them": of_rank("random_ops", counts(lambda name: name == "in loops")),
    "the generator of Python": of_rank("rng/python"),
    "the generator of NumPy": of_rank("rng/numpy"),
    "what a hook counted": hook("count", 0),
    "the generator of a hook": hook("generator", np.random.default_rng(5).bit_generator.state),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, Run]:
    """An uninterrupted run."""
    run = Runs(Plugins.installed(strict=True), StrictTrial, tmp_path_factory.mktemp("whole"))
    return run, run(7, schedule=SAVES_EACH, aggregation=2)


def resumed(whole: tuple[Runs, Run], fault: Fault, folder: Path) -> list[str]:
    """Return where a run differs that an adapter with a fault resumes."""

    class Leaky(EstimatorAdapter):
        def load(self, path: Path) -> None:
            changed = folder / "changed"
            shutil.copytree(path, changed)
            fault(changed)
            super().load(changed)

    run, uninterrupted = whole
    leaky = dataclasses.replace(run.framework, load=lambda: Leaky)
    settings: dict[str, Any] = {"whole": uninterrupted, "framework": leaky, "aggregation": 2}
    try:
        return resumed_differences(run, 7, contents, positions=[AT], **settings).get(AT, [])
    except DetError as refusal:
        return [str(refusal)]


@pytest.mark.slow
def test_nothing_is_found_where_nothing_is_left_out(
    whole: tuple[Runs, Run], tmp_path: Path
) -> None:
    assert resumed(whole, lambda folder: None, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_an_item_that_is_left_out_is_found(
    whole: tuple[Runs, Run], fault: str, tmp_path: Path
) -> None:
    """By a number that differs, or because the resumed run is refused."""
    assert resumed(whole, FAULTS[fault], tmp_path)
