"""A model divided among two ranks trains as one that each of them has a copy of."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from det_testing import Run
from det_testing._play import Cast, Request, play

pytestmark = pytest.mark.process

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
        Request(
            name="divided", length=200, hparams=CLIP, trial=trials.RowsTrial, optimizations=FSDP
        ),
        Request(name="own", length=12, hparams=CLIP, trial=trials.OwnTrial),
        Request(name="lean", length=12, hparams=CLIP, trial=trials.LeanTrial, optimizations=FSDP),
        Request(name="mixed", length=12, hparams=CLIP, trial=trials.MixedTrial),
        Request(name="averages copied", length=12, hparams=digits, trial=trials.AveragedTrial),
        Request(
            name="averages divided",
            length=12,
            hparams=digits,
            trial=trials.AveragedTrial,
            optimizations=FSDP,
        ),
        Request(
            name="idle",
            length=3,
            hparams=digits,
            trial=trials.IdleTrial,
            optimizations=FSDP,
            may_be_refused=True,
        ),
        Request(
            name="grown",
            length=3,
            hparams=digits,
            trial=trials.GrownTrial,
            optimizations=FSDP,
            may_be_refused=True,
        ),
        Request(
            name="astray",
            length=3,
            hparams={**digits, "astray": True},
            trial=trials.MixedTrial,
            may_be_refused=True,
        ),
    ]
    cast = Cast(
        trial=trials.RowsTrial, framework="torch", hooks="det_torch._hooks", backend="torch"
    )
    return play(cast, requests, tmp_path_factory.mktemp("sharded"))[0]


def test_losses_are_those_of_copies_over_two_hundred_steps(chief: dict[str, Run]) -> None:
    """With clipping by a norm over all parts, a schedule and running statistics.

    The validation is uneven.
    """
    copied, divided = chief["copied"], chief["divided"]
    apart = max(abs(copied.losses[n] - divided.losses[n]) for n in copied.losses)
    print(f"largest difference of 200 losses: {apart:.2e}")
    assert len(copied.losses) == 200
    assert apart < 1e-6
    assert divided.validations[200] == pytest.approx(copied.validations[200], abs=1e-5)
    assert copied.losses[200] < copied.losses[1] / 2


@pytest.mark.parametrize("name", ["own", "mixed", "lean"])
def test_model_with_own_sharding_or_recomputation_trains_alike(
    chief: dict[str, Run], name: str
) -> None:
    losses = {n: loss for n, loss in chief["copied"].losses.items() if n <= 12}
    assert chief[name].losses == pytest.approx(losses, abs=1e-6)


def test_averaged_weights_are_those_of_copies(chief: dict[str, Run]) -> None:
    copied, divided = chief["averages copied"], chief["averages divided"]
    assert divided.losses == pytest.approx(copied.losses, abs=1e-6)
    assert divided.validations[12] == pytest.approx(copied.validations[12], abs=1e-5)


@pytest.mark.parametrize("name", ["idle", "astray"])
def test_parts_of_different_models_are_not_saved(chief: dict[str, Run], name: str) -> None:
    """A rank left out a step.

    A copy of a part, along the other dimension of the mesh, was changed.
    """
    assert re.match(
        r"at batch 3 the weights of rank 1 differ from those of rank 0", chief[name].error
    )


def test_changed_groups_of_a_divided_model_are_refused(chief: dict[str, Run]) -> None:
    assert re.match(
        r"the groups of an optimizer were changed in training, and its model is sharded; make all",
        chief["grown"].error,
    )


@pytest.mark.thorough
def test_a_rank_holds_half_and_needs_little_more(
    trials: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters and optimizer state as tensors hold them, and the peak of a new process's memory.

    The peak is above what it had before.
    """
    monkeypatch.setenv(
        "MALLOC_MMAP_THRESHOLD_", "65536"
    )  # what is freed goes back, or the peak is that of the C library's heap
    found = {}
    for name, optimizations in {"copied": {}, "divided": FSDP}.items():
        (tmp_path / name).mkdir()
        cast = Cast(
            trial=trials.WideTrial, framework="torch", hooks="det_torch._hooks", backend="torch"
        )
        request = Request(
            name="wide", length=3, hparams={"global_batch_size": 64}, optimizations=optimizations
        )
        found[name] = play(cast, [request], tmp_path / name)[0]["wide"].reports[3]
    copied, divided = found["copied"], found["divided"]
    held, peak = divided["held"] / copied["held"], divided["peak"] / copied["peak"]
    print(f"\nheld: {divided['held'] / 1e6:.1f} MB of {copied['held'] / 1e6:.1f} MB: {held:.3f}")
    print(f"peak: {divided['peak'] / 1e6:.1f} MB of {copied['peak'] / 1e6:.1f} MB: {peak:.3f}")
    assert held == pytest.approx(0.5, abs=0.01)
    assert peak < 0.7


@pytest.mark.thorough
def test_a_compiled_model_trains_alike(trials: Any, chief: dict[str, Run], tmp_path: Path) -> None:
    cast = Cast(
        trial=trials.RowsTrial, framework="torch", hooks="det_torch._hooks", backend="torch"
    )
    request = Request(
        name="compiled", length=3, hparams=CLIP, optimizations={**FSDP, "compile": True}
    )
    losses = play(cast, [request], tmp_path)[0]["compiled"].losses
    assert losses == pytest.approx(
        {n: loss for n, loss in chief["copied"].losses.items() if n <= 3}, abs=1e-6
    )
