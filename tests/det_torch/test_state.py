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
from det_testing import differences
from det_torch import state
from det_torch.arrays import encode_numpy
from det_torch.testing import OneVarTrial

PLAIN = {
    "none": None,
    "numbers": [1, 2**80, -0.5, float("inf"), 1j, True],
    "text": "ü",
    "bytes": b"\x00\xff",
    "no bytes": b"",
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
    assert {k: v for k, v in read.items() if k != "tensors"} == {
        k: v for k, v in PLAIN.items() if k != "tensors"
    }
    assert [type(value) for value in read.values()] == [type(value) for value in PLAIN.values()]
    assert all(torch.equal(a, b) for a, b in zip(read["tensors"], PLAIN["tensors"], strict=True))  # type: ignore[arg-type]


NUMPY = [
    *(
        kind(1)
        for kind in (np.float16, np.float32, np.float64, np.int8, np.uint64, np.complex64, np.bool_)
    ),
    *(np.str_("ü"), np.bytes_(b"x"), np.datetime64("2020-01-01T00:00"), np.timedelta64(5, "ms")),
    *(
        np.ones((2, 3), np.float32),
        np.arange(6).reshape(2, 3).T,
        np.zeros((0, 2)),
        np.array(1.5),
        np.array(["a", "bc"]),
    ),
    np.arange(3, dtype=">i4"),
]


@pytest.mark.parametrize("value", NUMPY, ids=lambda value: f"{value.dtype}{value.shape}")
def test_numpys_numbers_and_arrays_are_read_back_as_such(value: Any, tmp_path: Path) -> None:
    """By torch's safe reader, which is asked for nothing of NumPy's."""
    state.check({"extra": [{"deep": (value,)}]})
    state.save({"extra": [{"deep": (value,)}]}, tmp_path)
    assert (
        type(torch.load(tmp_path / state.FILE, weights_only=True)["extra"][0]["deep"][0]) is tuple
    )
    read = state.load(tmp_path)["extra"][0]["deep"][0]
    assert differences(read, value) == []


def test_a_state_without_numpy_is_not_copied_to_be_written() -> None:
    inner = collections.OrderedDict(weight=torch.ones(2))
    assert encode_numpy({"a": [inner]})["a"][0] is inner


def test_state_dict_metadata_is_kept_with_numpy_numbers(tmp_path: Path) -> None:
    weights = collections.OrderedDict(nn.Linear(1, 1).state_dict(), extra=np.float32(2))
    weights._metadata = {"": {"version": 3}}  # type: ignore[attr-defined]
    state.save({"models_state_dict": [weights]}, tmp_path)
    read = state.load(tmp_path)["models_state_dict"][0]
    assert (read._metadata, type(read["extra"])) == ({"": {"version": 3}}, np.float32)


@pytest.mark.parametrize(
    "encoded",
    [
        ("<f8", torch.zeros(8, dtype=torch.uint8), (2,)),
        ("<f8", torch.zeros(24, dtype=torch.uint8), (2,)),
        ("<f8", torch.zeros(8, dtype=torch.uint8), (-1,)),
        ("<f8", torch.zeros(8, dtype=torch.uint8), (True,)),
        ("<f8", torch.zeros(8, dtype=torch.uint8), [1]),
        ("<f8", torch.zeros(1, dtype=torch.float64), (1,)),
        ("<f8", torch.empty(0, dtype=torch.uint8), (10**9, 10**9)),
        ("|O", torch.zeros(8, dtype=torch.uint8), (1,)),
        ("|V8", torch.zeros(8, dtype=torch.uint8), (1,)),
        ("f8,O", torch.zeros(16, dtype=torch.uint8), (1,)),
        ("<f8", "\0" * 8, (1,)),
        ("<f8", "\0" * 7),
        ("<f8", "\u1234" * 8),
        ("<f3", "\0" * 3),
        (None, "\0" * 8),
        ("<f8", 8),
    ],
)
def test_an_array_that_is_not_what_it_says_is_damage(tmp_path: Path, encoded: Any) -> None:
    """Objects above all, whose bytes are pointers."""
    torch.save({"models_state_dict": [{"a": ("__numpy__", *encoded)}]}, tmp_path / state.FILE)
    with pytest.raises(
        CheckpointError, match=r"^the checkpoint holds an array of type .* that is damaged$"
    ):
        state.load(tmp_path)


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
        np.array([object()]),
        np.zeros(1, [("a", "f4")]),
        np.ma.masked_array([1.0]),
        Path("x"),
        collections.defaultdict(list),
        range(3),
    ],
)
def test_value_that_needs_unpickling_is_refused_with_its_place(value: Any) -> None:
    with pytest.raises(TrialError) as refusal:
        state.check({"mine": {"deep": [0, value]}})
    assert (
        str(refusal.value)
        == f"['mine']['deep'][1] of the checkpoint is {type(value).__name__}, which a checkpoint"
        " cannot hold safely; keep tensors, numbers, text, lists and dicts there"
    )


def test_object_as_a_models_extra_state_is_refused_at_the_save(lab: Any) -> None:
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
        TrialError,
        match=r"^\['models_state_dict'\]\[1\]\['_extra_state'\] of the checkpoint is object",
    ):
        lab(Trial, 1)


def test_a_checkpoint_is_loaded_without_unpickling(lab: Any) -> None:
    """By torch alone, with `weights_only=True`."""
    contents = lab.contents(lab(OneVarTrial, 3).checkpoints[3])
    assert {
        "models_state_dict",
        "optimizers_state_dict",
        "lr_schedulers_state_dict",
        "callbacks",
        "rng_state",
    } <= set(contents)


@pytest.mark.parametrize(
    "name", ["state_dict.pth", "determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt"]
)
def test_files_of_older_names_are_found(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    torch.save({"models_state_dict": []}, tmp_path / name)
    assert state.load(tmp_path) == {"models_state_dict": []}


def test_keys_of_one_model_are_brought_into_todays_form(tmp_path: Path) -> None:
    torch.save(
        {"model_state_dict": {"w": 1}, "optimizer_state_dict": {"lr": 2}, "lr_scheduler": None},
        tmp_path / state.FILE,
    )
    assert state.load(tmp_path) == {
        "models_state_dict": [{"w": 1}],
        "optimizers_state_dict": [{"lr": 2}],
        "lr_schedulers_state_dict": [],
    }


def test_both_forms_at_once_are_damage(tmp_path: Path) -> None:
    torch.save({"model_state_dict": {}, "models_state_dict": []}, tmp_path / state.FILE)
    with pytest.raises(
        CheckpointError,
        match="holds both 'model_state_dict' and 'models_state_dict'; it is damaged",
    ):
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
        CheckpointError,
        match=r"holds no state_dict.pth; name the directory of a checkpoint of a PyTorchTrial",
    ):
        state.load(tmp_path)


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("run",))


def test_nothing_is_run_while_reading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"models_state_dict": [Evil()]}, tmp_path / state.FILE)
    with pytest.raises(
        CheckpointError,
        match=r"cannot be read safely: .*; a checkpoint must hold tensors and plain data only",
    ):
        state.load(tmp_path)
    assert "run" not in capsys.readouterr().out.split()


def test_refusal_names_the_object_and_advises_no_unsafe_load(tmp_path: Path) -> None:
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
def test_the_prefix_of_a_distributed_wrapper_does_not_matter(
    saved_prefixed: bool, wanted_prefixed: bool
) -> None:
    def model(prefixed: bool) -> nn.Module:
        inner = nn.Linear(2, 1)
        return nn.ModuleDict({"module": inner}) if prefixed else inner

    saved, wanted = model(saved_prefixed), model(wanted_prefixed)
    state.load_weights(wanted, saved.state_dict())
    for a, b in zip(saved.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(a, b)
