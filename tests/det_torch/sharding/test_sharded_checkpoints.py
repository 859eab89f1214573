"""Checkpoints of models that are divided among ranks.

Written in parts, loaded on any number of ranks, exactly.
"""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from det_core import CheckpointError, Plugins
from det_testing import Runs
from det_testing._play import Cast, Request, play
from det_torch import state
from det_torch.sharding import FOLDER

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
FSDP = {"sharding": "fsdp"}
DIGITS = {"global_batch_size": 64, "dropout": 0.2, "clip": 0.05}


@pytest.fixture(scope="module")
def trials() -> Any:
    """The module of the trials, under a name by which other processes can import it."""
    sys.path.append(str(HERE))
    import sharded_trials

    yield sharded_trials
    sys.path.remove(str(HERE))


def cast(trials: Any, size: int) -> Cast:
    return Cast(
        trial=trials.RowsTrial,
        framework="torch",
        hooks="det_torch._hooks",
        backend="torch",
        size=size,
    )


@pytest.fixture(scope="module")
def two(trials: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What two ranks did, and the folder of their checkpoints."""
    folder = tmp_path_factory.mktemp("two")
    summed = {"sharding": "fsdp", "aggregation_frequency": 3}
    fp16 = {"sharding": "fsdp", "precision": "fp16"}
    requests = [
        Request(name="whole", length=9, save_at=[4], hparams=DIGITS, optimizations=FSDP),
        Request(name="whole on", length=9, behind=("whole", 4), hparams=DIGITS, optimizations=FSDP),
        Request(name="summed", length=9, save_at=[4], hparams=DIGITS, optimizations=summed),
        Request(
            name="summed on", length=9, behind=("summed", 4), hparams=DIGITS, optimizations=summed
        ),
        Request(
            name="fp16",
            length=9,
            save_at=[4],
            hparams=DIGITS,
            trial=trials.SingleTrial,
            optimizations=fp16,
        ),
        Request(
            name="fp16 on",
            length=9,
            behind=("fp16", 4),
            hparams=DIGITS,
            trial=trials.SingleTrial,
            optimizations=fp16,
        ),
        Request(
            name="odd",
            length=9,
            save_at=[1, 4],
            hparams=DIGITS,
            trial=trials.OddTrial,
            optimizations=FSDP,
        ),
        Request(
            name="odd on",
            length=9,
            behind=("odd", 4),
            hparams=DIGITS,
            trial=trials.OddTrial,
            optimizations=FSDP,
        ),
        Request(name="odd copies", length=9, hparams=DIGITS, trial=trials.OddTrial),
        Request(name="copies on", length=9, behind=("whole", 4), hparams=DIGITS),
        Request(name="copies", length=9, save_at=[4], hparams=DIGITS),
        Request(
            name="divided on", length=9, behind=("copies", 4), hparams=DIGITS, optimizations=FSDP
        ),
    ]
    return play(cast(trials, 2), requests, folder)[0], folder / "checkpoints"


def tensors(contents: Any, place: str = "") -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, by where they are in it."""
    if isinstance(contents, torch.Tensor):
        return {place: contents}
    inner = contents.items() if isinstance(contents, dict) else enumerate(contents)
    found: dict[str, torch.Tensor] = {}
    for key, value in inner:
        if isinstance(value, (dict, list, tuple, torch.Tensor)):
            found |= tensors(value, f"{place}/{key}")
    return found


@pytest.mark.parametrize("name", ["whole", "summed", "fp16", "odd"])
def test_resumed_run_equals_an_uninterrupted_one_bit_for_bit(two: Any, name: str) -> None:
    """With dropout, clipping, a schedule.

    In the middle of a step of three batches. With a gradient scaler. With a buffer that a step
    assigns, a module that has a version, and a layer that has thawed.
    """
    runs, checkpoints = two
    assert runs[f"{name} on"].losses == {n: loss for n, loss in runs[name].losses.items() if n > 4}
    one = tensors(state.load(checkpoints / runs[name].checkpoints[9]))
    other = tensors(state.load(checkpoints / runs[f"{name} on"].checkpoints[9]))
    assert one.keys() == other.keys()
    assert [place for place in one if not torch.equal(one[place], other[place])] == []
    assert any("exp_avg" in place for place in one)


def test_divided_buffers_versions_and_flags_are_those_of_copies(two: Any) -> None:
    runs, checkpoints = two
    assert runs["odd"].losses == pytest.approx(runs["odd copies"].losses, abs=1e-6)
    first, second = (
        state.load(checkpoints / runs["odd"].checkpoints[at])["models_state_dict"][0]
        for at in (1, 4)
    )
    assert not torch.equal(first["embed.weight"], second["embed.weight"])
    assert not torch.equal(first["centre"], second["centre"])


def test_each_rank_writes_its_own_part_and_the_manifest_has_all(two: Any) -> None:
    """Only numbers of steps lie outside the parts, nothing of the model or optimizer state."""
    runs, checkpoints = two
    path = checkpoints / runs["whole"].checkpoints[9]
    parts = {file.name: file.stat().st_size for file in (path / FOLDER).iterdir()}
    assert set(parts) == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert parts["__1_0.distcp"] > 0.4 * parts["__0_0.distcp"]
    assert (path / state.FILE).stat().st_size < parts["__0_0.distcp"]


@pytest.mark.parametrize("name", ["copies on", "divided on"])
def test_copies_resume_from_shards_and_shards_from_copies(two: Any, name: str) -> None:
    runs, _ = two
    whole = runs["whole"].losses
    assert runs[name].losses == pytest.approx(
        {n: loss for n, loss in whole.items() if n > 4}, abs=1e-9
    )


def test_one_process_takes_up_what_two_have_saved(trials: Any, two: Any) -> None:
    """It has all of the model and of the optimizer's state, and trains on."""
    runs, checkpoints = two
    saved = state.load(checkpoints / runs["summed"].checkpoints[4])
    alone = Runs(Plugins.installed(), trials.RowsTrial, checkpoints.parent)
    with alone.adapter(**DIGITS) as adapter:
        adapter.load(checkpoints / runs["summed"].checkpoints[4])
        taken = adapter.context.models[0].state_dict()
        moments = adapter.context.optimizers[0].state_dict()["state"]
    assert [
        name for name in taken if not torch.equal(taken[name], saved["models_state_dict"][0][name])
    ] == []
    kept = saved["optimizers_state_dict"][0]["state"]
    assert [n for n in moments if not torch.equal(moments[n]["exp_avg"], kept[n]["exp_avg"])] == []
    on = alone(6, checkpoint=runs["whole"].checkpoints[4], **DIGITS)
    assert list(on.losses) == [5, 6]


@pytest.mark.thorough
def test_four_ranks_go_on_where_two_have_stopped(trials: Any, two: Any, tmp_path: Path) -> None:
    """As copies do that are restored from the same parts put together.

    Of three validation batches one rank has none.
    """
    runs, checkpoints = two
    exact = {"global_batch_size": 64}
    shutil.copytree(checkpoints, tmp_path / "checkpoints")
    before = runs["whole"].checkpoints[4]
    requests = [
        Request(name="on", length=7, checkpoint=before, hparams=exact, optimizations=FSDP),
        Request(name="copies", length=7, checkpoint=before, hparams=exact),
    ]
    found = play(cast(trials, 4), requests, tmp_path)[0]
    four, copies = found["on"], found["copies"]
    assert list(four.losses) == [5, 6, 7]
    assert four.losses == pytest.approx(copies.losses, abs=1e-9)
    assert four.validations[7] == pytest.approx(copies.validations[7], abs=1e-9)
    saved = state.load(checkpoints / before)["models_state_dict"][0]
    after = state.load(tmp_path / "checkpoints" / four.checkpoints[7])["models_state_dict"][0]
    assert {name: t.shape for name, t in saved.items()} == {
        name: t.shape for name, t in after.items()
    }
    assert {
        file.name for file in (tmp_path / "checkpoints" / four.checkpoints[7] / FOLDER).iterdir()
    } == {".metadata", *(f"__{rank}_0.distcp" for rank in range(4))}


class Harm:
    def __reduce__(self) -> Any:
        return (Path("/tmp/harm").touch, ())


def test_a_description_that_would_run_code_is_not_unpickled(two: Any, tmp_path: Path) -> None:
    runs, checkpoints = two
    shutil.copytree(checkpoints / runs["whole"].checkpoints[9], tmp_path / "harmful")
    (tmp_path / "harmful" / FOLDER / ".metadata").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(
        CheckpointError, match=r"cannot be read safely: it asks for .*the checkpoint is damaged"
    ):
        state.load(tmp_path / "harmful")
