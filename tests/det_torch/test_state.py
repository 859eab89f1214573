"""The file of a checkpoint: what it may hold, and what is read of others."""

from __future__ import annotations

import collections
import enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from det_core import CheckpointError, TrialError
from det_torch import state
from det_torch.testing import OneVarTrial

PLAIN = {
    "none": None,
    "numbers": [1, 2**80, -0.5, float("inf"), 1j, True],
    "text": "ü",
    "bytes": b"\x00\xff",
    "tensors": (torch.ones(2), nn.Parameter(torch.zeros(1)), torch.tensor(1, dtype=torch.bfloat16)),
    "torch": [torch.float16, torch.device("cpu"), torch.Size([1, 2])],
    "set": {1, 2},
    "ordered": collections.OrderedDict(a=[1]),
    "counter": collections.Counter("aab"),
    ("a", 1): {None: 0, 2.5: 1},
}


def test_all_plain_data_is_read_back_as_it_was(tmp_path: Path) -> None:
    state.check({"extra": PLAIN})
    state.save({"extra": PLAIN}, tmp_path)
    read = state.load(tmp_path)["extra"]
    assert {k: v for k, v in read.items() if k != "tensors"} == {k: v for k, v in PLAIN.items() if k != "tensors"}
    assert [type(value) for value in read.values()] == [type(value) for value in PLAIN.values()]
    assert all(torch.equal(a, b) for a, b in zip(read["tensors"], PLAIN["tensors"], strict=True))  # type: ignore[arg-type]


class Colour(enum.IntEnum):
    RED = 1


class Pair(collections.namedtuple("Pair", "a b")):
    pass


@pytest.mark.parametrize(
    "value",
    [
        object(),
        print,
        Colour.RED,
        Pair(1, 2),
        np.float64(1),
        np.ones(2),
        Path("x"),
        collections.defaultdict(list),
        range(3),
    ],
)
def test_whatever_would_need_unpickling_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(TrialError) as refusal:
        state.check({"mine": {"deep": [0, value]}})
    assert str(refusal.value) == (
        f"['mine']['deep'][1] of the checkpoint is {type(value).__name__}, which a checkpoint cannot hold safely; keep tensors, "
        "numbers, text, lists and dicts there"
    )


def test_a_model_whose_extra_state_is_an_object_is_refused_when_it_is_saved(lab: Any) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return object()

        def set_extra_state(self, state: Any) -> None:
            pass

    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.wrap_model(Extra(1, 1))

    with pytest.raises(
        TrialError, match=r"^\['models_state_dict'\]\[1\]\['_extra_state'\] of the checkpoint is object"
    ):
        lab(Trial, 1)


def test_a_checkpoint_is_loaded_without_unpickling(lab: Any) -> None:
    """By torch alone, with `weights_only=True`."""
    contents = lab.contents(lab(OneVarTrial, 3).checkpoints[3])
    assert {"models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict", "callbacks", "rng_state"} <= set(
        contents
    )


@pytest.mark.parametrize(
    "name", ["state_dict.pth", "determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt"]
)
def test_files_of_older_names_are_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    torch.save({"models_state_dict": []}, tmp_path / name)
    assert state.load(tmp_path) == {"models_state_dict": []}


def test_keys_of_one_model_are_brought_into_todays_form(tmp_path: Path) -> None:
    torch.save(
        {"model_state_dict": {"w": 1}, "optimizer_state_dict": {"lr": 2}, "lr_scheduler": None}, tmp_path / state.FILE
    )
    assert state.load(tmp_path) == {
        "models_state_dict": [{"w": 1}],
        "optimizers_state_dict": [{"lr": 2}],
        "lr_schedulers_state_dict": [],
    }


def test_both_forms_at_once_are_damage(tmp_path: Path) -> None:
    torch.save({"model_state_dict": {}, "models_state_dict": []}, tmp_path / state.FILE)
    with pytest.raises(CheckpointError, match="holds both 'model_state_dict' and 'models_state_dict'; it is damaged"):
        state.load(tmp_path)


def test_what_determined_pickled_of_the_generators_is_read(tmp_path: Path) -> None:
    """NumPy's state is an array there, within a tuple."""
    import random

    from det_torch.rng import set_rng_state

    saved = {
        "cpu_rng_state": torch.random.get_rng_state(),
        "np_rng_state": np.random.get_state(),
        "random_rng_state": random.getstate(),
    }
    torch.save({"models_state_dict": [], "rng_state": saved}, tmp_path / state.FILE)
    drawn = torch.rand(1).item(), np.random.rand(), random.random()
    set_rng_state(state.load(tmp_path)["rng_state"])
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == drawn


def test_a_directory_without_a_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"holds no state_dict.pth; name the directory of a checkpoint of a PyTorchTrial"
    ):
        state.load(tmp_path)


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


def test_nothing_is_run_while_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"models_state_dict": [Evil()]}, tmp_path / state.FILE)
    with pytest.raises(
        CheckpointError, match=r"cannot be read safely: .*; a checkpoint must hold tensors and plain data only"
    ):
        state.load(tmp_path)
    assert "run" not in capsys.readouterr().out.split()


def test_the_refusal_names_the_object_and_gives_no_advice_to_load_it_all_the_same(tmp_path: Path) -> None:
    """torch's own message says that loading without `weights_only` would likely succeed."""
    torch.save({"models_state_dict": [Evil()]}, tmp_path / state.FILE)
    with pytest.raises(CheckpointError) as refused:
        state.load(tmp_path)
    assert "print" in str(refused.value)
    assert "weights_only" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / state.FILE).write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="cannot be read safely"):
        state.load(tmp_path)


def test_a_disk_that_refuses_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="could not be written"):
        state.save({"models_state_dict": []}, tmp_path / "nowhere")


@pytest.mark.parametrize("saved_prefixed", [True, False])
@pytest.mark.parametrize("wanted_prefixed", [True, False])
def test_the_prefix_of_a_distributed_wrapper_does_not_matter(saved_prefixed: bool, wanted_prefixed: bool) -> None:
    def model(prefixed: bool) -> nn.Module:
        inner = nn.Linear(2, 1)
        return nn.ModuleDict({"module": inner}) if prefixed else inner

    saved, wanted = model(saved_prefixed), model(wanted_prefixed)
    state.load_weights(wanted, saved.state_dict())
    for a, b in zip(saved.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(a, b)
