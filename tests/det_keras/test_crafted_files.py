"""Checkpoints that somebody else made: reading them runs nothing, whatever is in them."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.crafted import CANARY, harmful_pickles, mutate_one, mutations, reads_safely

from det_core import CheckpointError, TrialError
from det_keras import load_model_from_checkpoint_path
from det_keras.load import tensors
from det_keras.scripts import load_weights, save_weights
from det_keras.state import ARRAYS, read_state, write_state
from det_keras.versions import keras
from det_keras.weights import MODEL, WEIGHTS, read_weights, write_weights


def build_model() -> Any:
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(
        2, activation="relu", kernel_regularizer=keras.regularizers.L2(0.1)
    )(inputs)
    model = keras.Model(inputs, keras.layers.Dropout(0.5)(hidden))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError(), metrics=["mae"])
    return model


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint without code."""
    directory = tmp_path_factory.mktemp("good") / "checkpoint"
    directory.mkdir()
    write_weights(build_model(), directory)
    write_state(
        {"epoch": 3, "moments": np.arange(6.0), "pairs": {1: (2.0, float("nan"))}}, directory
    )
    assert load_model_from_checkpoint_path(directory).count_params() == 8
    return directory


@pytest.fixture(scope="module")
def hdf5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that a script saves, with the state of the optimizer."""
    directory = tmp_path_factory.mktemp("hdf5")
    model = build_model()
    model.optimizer.build(model.trainable_variables)
    save_weights(model, str(directory / "model"), 0)
    load_weights(build_model(), str(directory / "model"))
    return directory / "model.weights.h5"


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "checkpoint"))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def describe(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the description that a file holds of its model."""
    with zipfile.ZipFile(file) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(held["config.json"])
    change(config)
    held["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in held.items():
            archive.writestr(name, data)


def function(module: str, name: str) -> dict[str, Any]:
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


WANTED = {
    "a module that nobody asked for": {
        "module": CANARY, "class_name": "Layer", "config": {}, "registered_name": "Layer",
    },
    "a function of Python": function("shutil", "rmtree"),
    "a function of Keras": function("keras.config", "enable_unsafe_deserialization"),
    "a function of Keras by its class name": {
        "module": "keras.utils", "class_name": "get_file", "config": {"origin": "http://127.0.0.1:9/x"}, "registered_name": "",
    },
    "a lambda": {
        "module": "keras.layers", "class_name": "Lambda", "registered_name": None,
        "config": {"function": {"class_name": "__lambda__", "config": {"code": "4wEAAAA="}}},
    },
    "a type": {
        "module": CANARY, "class_name": "__typespec__", "spec_name": "Spec", "config": [], "registered_name": None,
    },
    "no module": {"class_name": "Dense", "config": {"units": 1}},
}  # fmt: skip


@pytest.mark.parametrize("name", WANTED)
@pytest.mark.parametrize("place", ["layer", "argument", "compile"])
def test_a_description_that_asks_for_more_than_keras_is_refused(
    copy: Path, name: str, place: str
) -> None:
    """Keras 2.15, and Keras 3 before 3.9, call what a description names, in safe mode too."""

    def change(config: dict[str, Any]) -> None:
        layers = config["config"]["layers"]
        if place == "layer":
            layers[1] = {"name": "x", "inbound_nodes": layers[1]["inbound_nodes"], **WANTED[name]}
        elif place == "argument":
            layers[1]["config"]["kernel_initializer"] = WANTED[name]
        else:
            config["compile_config"] = {"optimizer": "sgd", "loss": WANTED[name]}

    describe(copy / MODEL, change)
    with pytest.raises(
        CheckpointError,
        match=r"cannot be loaded safely: it asks for .*, which is no class of Keras; give",
    ):
        load_model_from_checkpoint_path(copy)
    assert not reads_safely(
        lambda: load_model_from_checkpoint_path(copy), copy.parent, CheckpointError
    )


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("member", [None, "a0.npy"])
def test_pickled_arrays_are_not_unpickled(copy: Path, which: int, member: str | None) -> None:
    """Neither in the place of the file, nor as an array of objects in it."""
    harm = copy.parent / "harm"
    data = harmful_pickles(harm)[which]
    if member is None:
        (copy / ARRAYS).write_bytes(data)
    else:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            head, {"descr": "|O", "fortran_order": False, "shape": (1,)}
        )
        with zipfile.ZipFile(copy / ARRAYS, "w") as archive:
            archive.writestr(member, head.getvalue() + data)
    assert not reads_safely(lambda: read_state(copy), copy.parent, CheckpointError)
    assert not harm.exists()


def huge(group: Any) -> None:
    """Every number has a value, and none takes room."""
    group.create_dataset("0", shape=(1 << 40,), dtype="f4", chunks=(1 << 20,), compression="gzip")


def linked(group: Any) -> None:
    group["0"] = h5py.ExternalLink("/etc/secret", "/x")


def elsewhere(group: Any) -> None:
    group.create_dataset("0", shape=(1,), dtype="u1", external=[("/etc/passwd", 0, 1)])


def virtual(group: Any) -> None:
    layout = h5py.VirtualLayout(shape=(1,), dtype="f4")
    layout[0] = h5py.VirtualSource("/etc/secret", "x", shape=(1,))[0]
    group.create_virtual_dataset("0", layout)


CRAFTED = {
    huge: r"bytes unpack to 4,398,046,511,1\d\d, which is refused as a decompression bomb",
    linked: "is a link to elsewhere",
    elsewhere: "lies in another file",
    virtual: "lies in another file",
}


def craft(file: Path, change: Callable[[Any], None]) -> None:
    """Put something else in the place of the first weights in an HDF5 file."""
    with h5py.File(file, "r+") as held:
        found: list[Any] = []
        held.visititems(
            lambda name, item: found.append(item) if isinstance(item, h5py.Dataset) else None
        )
        parent = held[found[0].name.rpartition("/")[0] or "/"]
        del parent[found[0].name.rpartition("/")[2]]
        if "0" in parent:
            del parent["0"]
        change(parent)


@pytest.mark.parametrize("change", CRAFTED, ids=lambda change: change.__name__)
@pytest.mark.parametrize("place", [MODEL, WEIGHTS])
def test_oversized_or_external_weights_are_refused(
    copy: Path, tmp_path: Path, place: str, change: Callable[[Any], None]
) -> None:
    """HDF5 allocates what a file claims, and follows links to any file that the user can read."""
    model = build_model()
    if place == WEIGHTS:
        (copy / MODEL).unlink()
        model.save_weights(str(copy / WEIGHTS))
        craft(copy / WEIGHTS, change)
    else:
        with zipfile.ZipFile(copy / MODEL) as archive:
            held = {name: archive.read(name) for name in archive.namelist()}
        (tmp_path / "x.h5").write_bytes(held[WEIGHTS])
        craft(tmp_path / "x.h5", change)
        with zipfile.ZipFile(copy / MODEL, "w") as archive:
            for name, data in (held | {WEIGHTS: (tmp_path / "x.h5").read_bytes()}).items():
                archive.writestr(name, data)
        with pytest.raises(CheckpointError, match=CRAFTED[change]):
            load_model_from_checkpoint_path(copy)
    for read in (lambda: read_weights(model, copy), lambda: tensors(copy)):
        with pytest.raises(CheckpointError, match=CRAFTED[change]):
            read()
        assert not reads_safely(read, tmp_path, CheckpointError)


@pytest.mark.parametrize("file", [MODEL, ARRAYS])
def test_archives_that_decompress_to_far_more_are_refused(copy: Path, file: str) -> None:
    with zipfile.ZipFile(copy / file) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(copy / file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in held.items():
            archive.writestr(name, data)
        archive.writestr("more", bytes(80 << 20))
    readers = {
        MODEL: [
            load_model_from_checkpoint_path,
            lambda path: read_weights(build_model(), path),
            tensors,
        ],
        ARRAYS: [read_state, tensors],
    }
    for read in readers[file]:
        with pytest.raises(CheckpointError, match="which is refused as a decompression bomb"):
            read(copy)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 2), mutate=mutations())
def test_mutated_checkpoints_are_read_or_refused(
    good: Path, scratch: Path, which: int, mutate: Callable[[bytes], bytes]
) -> None:
    """By Keras alone, as weights of a model, as the state of a trial, and for `det verify`."""
    copy = scratch / "checkpoint"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(good, copy)
    mutate_one([file for file in copy.rglob("*") if file.is_file()], which, mutate)
    errors = (CheckpointError, TrialError)
    reads_safely(lambda: load_model_from_checkpoint_path(copy), scratch, errors)
    reads_safely(lambda: read_weights(build_model(), copy), scratch, errors)
    reads_safely(lambda: read_state(copy), scratch, errors)
    reads_safely(lambda: tensors(copy), scratch, errors)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutate=mutations())
def test_mutated_weights_alone_are_read_or_refused(
    hdf5: Path, scratch: Path, mutate: Callable[[bytes], bytes]
) -> None:
    """Of a trial whose model has no description, of Determined, and of a script."""
    data = mutate(hdf5.read_bytes())
    for name in (WEIGHTS, "determined-keras-model.h5"):
        copy = scratch / f"of-{name}"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        (copy / name).write_bytes(data)
        reads_safely(
            partial(read_weights, build_model(), copy), scratch, (CheckpointError, TrialError)
        )
    file = scratch / "script.weights.h5"
    file.write_bytes(data)
    reads_safely(
        lambda: load_weights(build_model(), str(scratch / "script")), scratch, CheckpointError
    )
