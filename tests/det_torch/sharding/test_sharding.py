"""A model divided among two ranks trains as one that each of them has a copy of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from det_testing import Run
from det_testing._play import Cast, Request, play

HERE = Path(__file__).parent
FSDP = {"sharding": "fsdp"}
CLIP = {"global_batch_size": 64, "clip": 0.05}


@pytest.fixture(scope="module")
def trials() -> Any:
    """The module of the trials, under a name by which other processes can import it."""
    sys.path.append(str(HERE))
    import sharded_trials

    yield sharded_trials
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def chief(trials: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """What became of all runs on the chief; they share a pair of processes."""
    digits = {"global_batch_size": 64}
    requests = [
        Request(name="copied", length=200, hparams=CLIP, trial=trials.RowsTrial),
        Request(name="divided", length=200, hparams=CLIP, trial=trials.RowsTrial, optimizations=FSDP),
        Request(name="own", length=12, hparams=CLIP, trial=trials.OwnTrial),
        Request(name="lean", length=12, hparams=CLIP, trial=trials.LeanTrial, optimizations=FSDP),
        Request(name="averages copied", length=12, hparams=digits, trial=trials.AveragedTrial),
        Request(name="averages divided", length=12, hparams=digits, trial=trials.AveragedTrial, optimizations=FSDP),
    ]
    cast = Cast(trial=trials.RowsTrial, framework="torch", hooks="det_torch._hooks", backend="torch")
    return play(cast, requests, tmp_path_factory.mktemp("sharded"))[0]


def test_losses_are_those_of_copies_over_two_hundred_steps(chief: dict[str, Run]) -> None:
    """With clipping by a norm that is over all parts, a schedule, running statistics, and an uneven validation."""
    copied, divided = chief["copied"], chief["divided"]
    apart = max(abs(copied.losses[n] - divided.losses[n]) for n in copied.losses)
    print(f"largest difference of 200 losses: {apart:.2e}")
    assert len(copied.losses) == 200
    assert apart < 1e-6
    assert divided.validations[200] == pytest.approx(copied.validations[200], abs=1e-5)
    assert copied.losses[200] < copied.losses[1] / 2


@pytest.mark.parametrize("name", ["own", "lean"])
def test_a_model_that_its_trial_divides_or_that_saves_activations_trains_alike(
    chief: dict[str, Run], name: str
) -> None:
    losses = {n: loss for n, loss in chief["copied"].losses.items() if n <= 12}
    assert chief[name].losses == pytest.approx(losses, abs=1e-6)


def test_averaged_weights_are_those_of_copies(chief: dict[str, Run]) -> None:
    copied, divided = chief["averages copied"], chief["averages divided"]
    assert divided.losses == pytest.approx(copied.losses, abs=1e-6)
    assert divided.validations[12] == pytest.approx(copied.validations[12], abs=1e-5)
