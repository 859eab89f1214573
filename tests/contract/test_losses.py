"""Every framework, one table of losses.

The one-weight model, trained by each, gives the numbers of its formula.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.det_testing import style_hooks, styles

from det_core import Plugins
from det_testing import OneVar, Runs, fake_hooks, fakes

TRIALS: dict[str, Any] = {
    "fake-owned": fakes.OwnedOneVar,
    "fake-callback": styles.CallbackOneVar,
    "fake-chunked": styles.ChunkedOneVar,
}
ELSEWHERE = {
    "lightning": ("det_lightning.testing", "OneVarTrial"),
    "torch": ("det_torch.testing", "OneVarTrial"),
    "keras": ("det_keras.testing", "OneVarTrial"),
    "estimator": ("det_estimator.testing", "OneVarTrial"),
}

LOSSES = {1: 1.0, 2: 1.2724, 3: 1.4455, 4: 1.4701, 5: 1.3329, 6: 0.2670, 7: 0.3397}


def frameworks() -> Iterator[Any]:
    """Yield the trial class of each framework that is installed, by the framework's name."""
    yield from (pytest.param(trial, id=name) for name, trial in TRIALS.items())
    for name, (module, trial) in ELSEWHERE.items():
        if importlib.util.find_spec(module.partition(".")[0]):
            try:
                yield pytest.param(getattr(importlib.import_module(module), trial), id=name)
            except ModuleNotFoundError as error:  # the plugin is there, but not its framework
                if str(error.name).startswith("det_"):
                    raise


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Runs:
    plugins = Plugins.installed(strict=True)
    plugins.register(fake_hooks, "fakes")
    plugins.register(style_hooks, "styles")
    return Runs(plugins, request.param, tmp_path)


def test_the_table_is_what_the_formula_gives() -> None:
    assert {n: OneVar().loss(n - 1) for n in LOSSES} == pytest.approx(LOSSES, abs=1e-4)


@pytest.mark.parametrize("run", list(frameworks()), indirect=True)
def test_every_framework_gives_the_same_losses(run: Runs) -> None:
    assert run(len(LOSSES)).losses == pytest.approx(LOSSES, abs=2e-4)


@pytest.mark.parametrize("run", list(frameworks()), indirect=True)
def test_every_framework_tells_the_same_story(run: Runs) -> None:
    """The same events in the same order, whoever owns the loop."""
    assert run(3, 7).events == [
        *(("training", n) for n in (1, 2, 3)),
        *(("checkpoint", 3), ("validation", 3)),
        *(("training", n) for n in (4, 5, 6, 7)),
        *(("checkpoint", 7), ("validation", 7)),
    ]
