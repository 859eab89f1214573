"""The conformance suite's strict model finds an adapter of Keras that leaves one item out."""

from __future__ import annotations

import dataclasses
import io
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from det_core import DetError, Plugins
from det_keras.adapter import KerasAdapter
from det_keras.state import read_state, write_state
from det_keras.testing import StrictTrial, contents
from det_keras.weights import MODEL, WEIGHTS
from det_testing import SAVES_EACH, Run, Runs, resumed_differences

Fault = Callable[[dict[str, Any], Path], None]


def put(value: Any, *keys: Any) -> Fault:
    """Return what sets an entry of the state, or deletes it if the value is `...`."""

    def change(state: dict[str, Any], folder: Path) -> None:
        inner: Any = state
        for key in keys[:-1]:
            inner = inner[key]
        if value is ...:
            del inner[keys[-1]]
        else:
            assert repr(inner[keys[-1]]) != repr(value)
            inner[keys[-1]] = value

    return change


def moments(number: int) -> Fault:
    """Return what sets the variables of an optimizer to 0, except its steps and learning rate."""

    def change(state: dict[str, Any], folder: Path) -> None:
        variables = state["optimizers"][number]["variables"]
        variables[2:] = [np.zeros_like(each) for each in variables[2:]]

    return change


def steps(state: dict[str, Any], folder: Path) -> None:
    variables = state["optimizers"][0]["variables"]
    variables[0] = np.zeros_like(variables[0])


def waiting(state: dict[str, Any], folder: Path) -> None:
    gradients = state["optimizers"][0]["waiting"]
    assert any(each.any() for each in gradients[1:])
    gradients[1:] = [np.zeros_like(each) for each in gradients[1:]]


def generator(number: int) -> Fault:
    """Return what gives one of the generators of TensorFlow and Keras another state."""

    def change(state: dict[str, Any], folder: Path) -> None:
        variables = state["rng"]["variables"][0]
        variables[number] = variables[number] + np.ones_like(variables[number])

    return change


def weights(pattern: str) -> Fault:
    """Return what sets the arrays to 0 whose names in the file of the weights match."""

    def change(state: dict[str, Any], folder: Path) -> None:
        with zipfile.ZipFile(folder / MODEL) as archive:
            files = {each: archive.read(each) for each in archive.namelist()}
        content = io.BytesIO(files[WEIGHTS])
        changed = []
        with h5py.File(content, "r+") as held:

            def visit(name: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset) and re.fullmatch(pattern, name):
                    changed.append(bool(np.any(item[...])))
                    item[...] = 0

            held.visititems(visit)
        assert any(changed)
        with zipfile.ZipFile(folder / MODEL, "w") as archive:
            for each, data in (files | {WEIGHTS: content.getvalue()}).items():
                archive.writestr(each, data)

    return change


FAULTS: dict[str, tuple[int, Fault]] = {
    "weights": (4, weights(r"(backbone|layers/dense)/vars/0")),
    "statistics of the normalization": (4, weights(r".*norm.*/vars/[23]")),
    "a variable that a step assigned": (4, weights(r"vars/0")),
    "moments of the first optimizer": (4, moments(0)),
    "moments of the second optimizer": (4, moments(1)),
    "steps of an optimizer, by which a schedule goes": (4, steps),
    "a learning rate that a callback set": (4, put(0.05, "optimizers", 1, "learning_rate")),
    "gradients that wait": (3, waiting),
    "the generator of Python": (4, put(..., "rng", "python")),
    "the generator of NumPy": (4, put(..., "rng", "numpy")),
    "TensorFlow's global generator": (4, generator(0)),
    "the model's generators": (4, generator(-1)),
    "variables that Keras's file leaves out": (4, put([], "attributes")),
    "callbacks": (4, put([], "callbacks")),
    "a callback without methods for its state": (4, put({}, "callbacks", 1, "state")),
    "what was measured of the epoch": (4, put([], "measures", "epoch_so_far")),
    "the logs of an epoch that is over": (3, put({}, "measures", "epoch")),
    "the last batch's logs": (3, put({}, "measures", "logs")),
    "that an epoch is over": (3, put(False, "measures", "epoch_ended")),
}
"""By name: the batch after which a run is resumed, and what is left out.

After 3 an epoch is over.
"""


class Eager(StrictTrial):
    """Is not compiled, which is quicker for a few batches."""

    is_eager = True


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, Run]:
    """An uninterrupted run."""
    run = Runs(Plugins.installed(strict=True), Eager, tmp_path_factory.mktemp("whole"))
    return run, run(7, schedule=SAVES_EACH, aggregation=2)


def resumed(whole: tuple[Runs, Run], at: int, fault: Fault, folder: Path) -> list[str]:
    class Leaky(KerasAdapter):
        def load(self, path: Path) -> None:
            changed = folder / "changed"
            shutil.copytree(path, changed)
            found = read_state(path)
            fault(found, changed)
            write_state(found, changed)
            super().load(changed)

    leaky = dataclasses.replace(whole[0].framework, load=lambda: Leaky)
    try:
        found = resumed_differences(
            whole[0], 7, contents, positions=[at], whole=whole[1], framework=leaky, aggregation=2
        )
    except DetError as refusal:
        return [str(refusal)]
    return found.get(at, [])


@pytest.mark.slow
@pytest.mark.sample
@pytest.mark.parametrize("at", [3, 4])
def test_nothing_is_found_where_nothing_is_left_out(
    whole: tuple[Runs, Run], at: int, tmp_path: Path
) -> None:
    assert resumed(whole, at, lambda state, folder: None, tmp_path) == []


@pytest.mark.slow
@pytest.mark.sample(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_an_item_that_is_left_out_is_found(
    whole: tuple[Runs, Run], fault: str, tmp_path: Path
) -> None:
    """By a number that differs, or because the resumed run is refused."""
    assert resumed(whole, *FAULTS[fault], tmp_path)
