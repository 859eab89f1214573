"""The suite's strict model finds an adapter that leaves one item of the state out."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from det_jax import state
from det_jax.adapter import JaxAdapter
from det_jax.testing import StrictTrial, contents

from det_core import Plugins
from det_testing import SAVES_EACH, Run, Runs, resumed_differences

AT = 5
"""The second batch of epoch 1, after which gradients wait for those of the next batch."""
ITEMS = {
    "the parameters": r"\['params'\].*",
    "the moments of Adam": r".*\.(mu|nu)\b.*",
    "the steps of Adam and its schedule": r".*inner_states\['adam'\].*\.count",
    "the momentum": r".*\.trace\b.*",
    "the average of updates": r".*\.ema\b.*",
    "the steps of the average": r".*inner_opt_state\[1\]\.count",
    "gradients that wait": r".*\.acc_grads\b.*",
    "how many wait": r".*\.mini_step",
    "steps of the optimizer": r".*\.gradient_step",
    "the key": r"\['key'\]",
}
"""By name: the arrays, by their places in the state."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, Run]:
    """An uninterrupted run."""
    run = Runs(Plugins.installed(strict=True), StrictTrial, tmp_path_factory.mktemp("whole"))
    return run, run(7, schedule=SAVES_EACH, aggregation=2)


def differences_without(whole: tuple[Runs, Run], pattern: str, folder: Path) -> list[str]:
    class Leaky(JaxAdapter):
        def load(self, path: Path) -> None:
            changed = folder / "changed"
            shutil.copytree(path, changed)
            found = contents(path)
            names = [name for name in found if re.fullmatch(pattern, name)]
            assert not pattern or any(found[name].any() for name in names)
            without = {name: np.zeros_like(found[name]) for name in names}
            np.savez(changed / state.FILE, **{**found, **without})
            super().load(changed)

    run, uninterrupted = whole
    found = resumed_differences(
        run,
        7,
        contents,
        positions=[AT],
        whole=uninterrupted,
        framework=dataclasses.replace(run.framework, load=lambda: Leaky),
        aggregation=2,
    )
    return found.get(AT, [])


def test_nothing_is_found_where_nothing_is_left_out(
    whole: tuple[Runs, Run], tmp_path: Path
) -> None:
    assert differences_without(whole, "", tmp_path) == []


@pytest.mark.parametrize("item", ITEMS)
def test_an_item_that_is_left_out_is_found(
    whole: tuple[Runs, Run], item: str, tmp_path: Path
) -> None:
    assert differences_without(whole, ITEMS[item], tmp_path)


def test_the_items_are_all_that_a_checkpoint_holds(whole: tuple[Runs, Run]) -> None:
    run, uninterrupted = whole
    found = contents(run.storage.root / uninterrupted.checkpoints[AT])
    for name in found:
        assert any(re.fullmatch(pattern, name) for pattern in ITEMS.values()), name
