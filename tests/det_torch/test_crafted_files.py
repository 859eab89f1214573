"""Checkpoints that somebody else made: reading them runs nothing, whatever is in them."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.crafted import harmful_pickles, mutate_one, mutations, reads_safely
from torch.distributed.checkpoint import FileSystemWriter, save
from torch.distributed.checkpoint.metadata import TensorProperties

from det_core import CheckpointError
from det_torch import state
from det_torch.load import load_trial_from_checkpoint_path
from det_torch.sharding import FOLDER
from det_torch.testing import OneVarTrial

NAME = "models_state_dict.0.weight"
METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"
Anywhere = pytest.TempPathFactory


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: Anywhere) -> Path:
    """A checkpoint of a model whose weight lies in parts, as FSDP leaves it."""
    directory = tmp_path_factory.mktemp("sharded") / "checkpoint"
    directory.mkdir()
    weight = torch.arange(6.0).reshape(2, 3)
    save({NAME: weight}, storage_writer=FileSystemWriter(directory / FOLDER), no_dist=True)
    contents = {
        "models_state_dict": [{"weight": None, "bias": torch.zeros(2)}],
        "rng_state": {"np_rng_state": np.random.get_state()[1]},
        "sharded": {NAME: {"place": ["models_state_dict", 0, "weight"], "dims": [0]}},
    }
    torch.save(contents, directory / state.FILE)
    assert torch.equal(state.load(directory)["models_state_dict"][0]["weight"], weight)
    return directory


@pytest.fixture
def copy(sharded: Path, tmp_path: Path) -> Path:
    shutil.copytree(sharded, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: Anywhere) -> Path:
    return tmp_path_factory.mktemp("scratch")


def load(directory: Path) -> Callable[[], Any]:
    return lambda: state.load(directory)


def ask(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def plain(value: Any) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def new(module: str, name: str) -> bytes:
    """Opcodes that make an object without calling its `__init__`."""
    return ask(module, name) + b")\x81"


def build(values: dict[str, bytes]) -> bytes:
    """Opcodes that set attributes of the object before them."""
    return b"}(" + b"".join(plain(key) + value for key, value in values.items()) + b"ub"


def describe(first: bytes, length: int, path: str = "__0_0.distcp") -> bytes:
    """A description of one tensor that is none, with `first` executed before."""
    size = ask("torch", "Size") + b"((" + plain(2) + plain(2) + b"ttR"
    tensor = {
        "size": size,
        "properties": plain(TensorProperties(dtype=torch.float32)),
        "chunks": b"]",
    }
    index = ask(METADATA, "MetadataIndex") + b"(" + plain(NAME) + b"tR"
    stored = ask(FILESYSTEM, "_StorageInfo") + b"(" + plain(path) + plain(0) + plain(length) + b"tR"
    whole = {
        "state_dict_metadata": (
            b"}" + plain(NAME) + new(METADATA, "BytesStorageMetadata") + build(tensor) + b"s"
        ),
        "planner_data": b"N",
        "storage_data": b"}" + index + stored + b"s",
        "storage_meta": b"N",
        "version": b"N",
    }
    return b"\x80\x02" + first + new(METADATA, "Metadata") + build(whole) + b"."


RENAME = (
    ask(METADATA, "BytesStorageMetadata")
    + b"(N}("
    + plain("__name__")
    + plain("TensorStorageMetadata")
    + b"utb0"
)


@pytest.mark.parametrize("first", [b"", RENAME], ids=["plain", "renamed class"])
def test_object_in_place_of_a_sharded_tensor_is_not_unpickled(copy: Path, first: bytes) -> None:
    """By its description it is a tensor.

    Pickles may change the attributes of classes, here the name of one.
    """
    harm = copy.parent / "harm"
    payload = io.BytesIO()
    torch.save({"harm": harmful_pickles(harm)[1]}, payload)
    payload.write(harmful_pickles(harm)[1])
    (copy / FOLDER / "__0_0.distcp").write_bytes(payload.getvalue())
    (copy / FOLDER / ".metadata").write_bytes(describe(first, len(payload.getvalue())))
    assert not reads_safely(load(copy), copy.parent, CheckpointError)
    with pytest.raises(
        CheckpointError,
        match="safely: it would change a class; the checkpoint is damaged$" if first else "",
    ):
        state.load(copy)
    (copy / "load_data.json").write_text(json.dumps({"hparams": {"global_batch_size": 1}}))
    with pytest.raises(CheckpointError, match=str(copy)):
        load_trial_from_checkpoint_path(copy, OneVarTrial)
    assert not harm.exists()


def test_an_object_that_a_good_description_names_is_refused(copy: Path) -> None:
    """torch's own planner would unpickle what lies where bytes are described."""
    harm = copy.parent / "harm"
    (copy / FOLDER / "__0_0.distcp").write_bytes(harmful_pickles(harm)[1])
    assert not reads_safely(load(copy), copy.parent, CheckpointError)
    assert not harm.exists()


@pytest.mark.parametrize(
    "changes",
    [
        ask(METADATA, "Metadata") + b"(N}(" + plain("__setstate__") + plain(1) + b"utb0",
        ask(METADATA, "MetadataIndex") + b"}(" + plain("__hash__") + plain(1) + b"ub0",
        ask("torch", "float32") + b"(N}(" + plain("x") + plain(1) + b"utb0",
        ask("torch", "Size") + b"(N}(" + plain("__new__") + ask("torch", "float32") + b"utb0",
        ask("torch", "load") + b"0",
        ask("torch.serialization", "load") + b"0",
    ],
)
def test_a_description_cannot_change_what_its_reader_goes_by(copy: Path, changes: bytes) -> None:
    file = copy / FOLDER / ".metadata"
    file.write_bytes(b"\x80\x02" + changes + pickle.dumps(None, 2)[2:])
    with pytest.raises(
        CheckpointError,
        match=r"(safely: it (would change a class|asks for \S+)|is not what torch writes); the",
    ):
        state.load(copy)
    assert not reads_safely(load(copy), copy.parent, CheckpointError)


@pytest.mark.parametrize("path", ["../../secret", "/etc/passwd", "..", ""])
def test_parts_outside_of_the_checkpoint_are_not_read(copy: Path, path: str) -> None:
    (copy / FOLDER / ".metadata").write_bytes(describe(RENAME, 10, path))
    assert not reads_safely(load(copy), copy.parent, CheckpointError)


@pytest.mark.parametrize("name", [state.FILE, f"{FOLDER}/.metadata", f"{FOLDER}/__0_0.distcp"])
@pytest.mark.parametrize("which", range(5))
def test_pickles_that_run_something_are_refused_in_every_file(
    copy: Path, name: str, which: int
) -> None:
    harm = copy.parent / "harm"
    (copy / name).write_bytes(harmful_pickles(harm)[which])
    assert not reads_safely(load(copy), copy.parent, CheckpointError)
    assert not harm.exists()


def inflate(data: bytes, name: str) -> bytes:
    """Return a file of torch's in which a member is many zeros, compressed."""
    bomb = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as good, zipfile.ZipFile(bomb, "w") as archive:
        for member in good.namelist():
            if member.endswith(name):
                archive.writestr(member, bytes(80 << 20), zipfile.ZIP_DEFLATED)
            else:
                archive.writestr(member, good.read(member))
    return bomb.getvalue()


@pytest.mark.parametrize("which", [state.FILE, f"{FOLDER}/__0_0.distcp"])
def test_files_that_decompress_to_far_more_are_refused(copy: Path, which: str) -> None:
    """torch reads compressed members, too, and makes room for whatever length they claim."""
    file = copy / which
    bomb = inflate(file.read_bytes(), "data/0")
    file.write_bytes(bomb)
    description = pickle.loads((copy / FOLDER / ".metadata").read_bytes())
    if which != state.FILE:
        for stored in description.storage_data.values():
            stored.length = len(bomb)
        (copy / FOLDER / ".metadata").write_bytes(pickle.dumps(description))
    with pytest.raises(
        CheckpointError, match=r"bytes unpack to 83,.*, which is refused as a decompression bomb"
    ):
        state.load(copy)


@pytest.mark.parametrize(
    "contents",
    [
        [1],
        {"sharded": 1},
        {"sharded": {NAME: 1}},
        {"sharded": {NAME: {"place": 1, "dims": []}}},
        {"sharded": {NAME: {"place": ["a", "b"], "dims": []}}},
        {"sharded": {NAME: {"place": [], "dims": []}}},
    ],
)
def test_contents_of_another_form_are_a_checkpoint_error(copy: Path, contents: Any) -> None:
    torch.save(contents, copy / state.FILE)
    assert not reads_safely(load(copy), copy.parent, CheckpointError)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 2), mutate=mutations())
def test_mutated_checkpoints_are_read_or_refused(
    sharded: Path, scratch: Path, which: int, mutate: Callable[[bytes], bytes]
) -> None:
    copy = scratch / "checkpoint"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(sharded, copy)
    mutate_one([file for file in copy.rglob("*") if file.is_file()], which, mutate)
    reads_safely(load(copy), scratch, CheckpointError)
