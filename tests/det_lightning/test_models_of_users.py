"""What Lightning's own Trainer makes of a module, det makes of it, bit for bit.

Alone, and in runs that go on from a killed one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.det_lightning.conftest import Lab
from tests.det_lightning.users import CASES, SAVED_AT, Alone, Seen, by_det, last_state, metrics_of
from tests.support.compared import compare

from det_testing._play import together

pytestmark = pytest.mark.process

WAYS: dict[str, int | None] = {
    "undisturbed": None,
    **{f"killed behind batch {at}": at for at in SAVED_AT},
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Alone, Seen]]:
    """What Lightning alone makes of a case, and what its module saw; trained once."""
    known: dict[str, tuple[Alone, Seen]] = {}

    def train(case: str) -> tuple[Alone, Seen]:
        if case not in known:
            made, seen, path = CASES[case], Seen(), tmp_path_factory.mktemp("alone")
            known[case] = Alone(made.module(seen, made.norm), made.data, **made.given(path)), seen
        return known[case]

    return train


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the killed runs left, in a folder for each."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.det_lightning.users", str(folder)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.sample(20)
@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("case", list(CASES))
def test_a_module_is_trained_as_by_lightning(
    lab: Any, alone: Any, case: str, way: str, request: Any
) -> None:
    """Its weights after the hooks that end training, metrics, learning rates and schedule."""
    (whole, other), at, seen = alone(case), WAYS[way], Seen()
    if at:
        lab = Lab(request.getfixturevalue("killed") / case / str(at))
        (checkpoint,) = (lab.root / "checkpoints").glob(
            "[0-9a-f]*"
        )  # it may have been killed before it had tidied up
        ran = by_det(lab, CASES[case], seen, at, checkpoint=checkpoint.name)
    else:
        ran = by_det(lab, CASES[case], seen)
    state = last_state(lab, ran)
    weights = (state["state_dict"], whole.module.state_dict())
    compare(case, way, weights, (metrics_of(ran, at or 0), whole.metrics(at or 0)))
    assert seen.lengths == other.lengths
    assert other.rates[len(other.rates) - len(seen.rates) :] == seen.rates
    states = [scheduler.scheduler.state_dict() for scheduler in whole.trainer.lr_scheduler_configs]
    assert str(states) == str(state["lr_schedulers"])
    if case == "a logger" and not at:
        theirs = next(Path(whole.trainer.logger.log_dir).rglob("metrics.csv"))
        assert next(lab.root.rglob("metrics.csv")).read_text() == theirs.read_text()


@pytest.mark.thorough
def test_a_module_is_trained_on_two_ranks_as_by_lightnings_ddp(tmp_path: Path) -> None:
    """Up to rounding, 1e-5, by which a moving average of the weights may differ.

    And to the same bits where a rank was killed.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    with pytest.raises(RuntimeError, match="rank 1 ended with status -9"):
        together(ranks(first, "killed"), first)
    (saved,) = (first / "checkpoints").glob("[0-9a-f]*")
    shutil.copytree(saved, second / "checkpoints" / saved.name)
    together(ranks(second, saved.name), second)
    found = torch.load(second / "found.pt", weights_only=True)
    alone = found.pop("alone")
    for way, (state, metrics) in found.items():
        behind = SAVED_AT[0] if way == "killed" else 0
        theirs = {
            name: {at: value for at, value in row.items() if at > behind}
            for name, row in alone[1].items()
        }
        pairs = (state, alone[0]), (metrics, theirs)
        compare("DDP: EMA, one cycle, BatchNorm", way, *pairs, ranks=2, bound=1e-5)
    assert str(found["killed"][0]) == str(found["undisturbed"][0])


def ranks(folder: Path, what: str) -> list[list[str]]:
    return [
        [sys.executable, "-m", "tests.det_lightning.pair", str(folder), str(rank), what]
        for rank in range(2)
    ]
