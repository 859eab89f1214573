"""Checkpoints that somebody else made.

Reading them runs nothing, whatever is in them, and ends well or with a sentence.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.det_estimator.conftest import Lab
from tests.det_estimator.trials import Line
from tests.support.bundles import entries, write_bundle
from tests.support.crafted import harmful_pickles, mutate_one, mutations, reads_safely

from det_core import CheckpointError, DistributedContext
from det_estimator import load_estimator_from_checkpoint_path
from det_estimator.adapter import DRIFT_FILE, STATE_FILE
from det_estimator.load import export_saved_model, tensors
from det_estimator.optimizer import WAITING
from det_estimator.waiting import FILE as WAITING_FILE
from det_estimator.waiting import Waiting

Read = Callable[[Path], Any]


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a trial without saved models, with statistics of each rank."""
    lab = Lab(tmp_path_factory.mktemp("good"))
    ran = lab(Line, 4)
    copy = tmp_path_factory.mktemp("copy") / "checkpoint"
    with lab.opened(ran.checkpoints[4]) as path:
        shutil.copytree(path, copy)
    np.savez(copy / DRIFT_FILE, **{"0:global_step": np.int64(4)})
    return copy


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def restore(scratch: Path) -> Iterator[Read]:
    """Read a checkpoint as a run does that goes on from it.

    All of it, into a session that is open.
    """
    with pytest.MonkeyPatch.context() as patch:
        # An adapter makes its own copy of the variables there.
        patch.setattr(tempfile, "tempdir", str(scratch))
        with Lab(scratch).adapter(Line, first_batch=4) as adapter:
            assert adapter.fingerprint()

            def read(path: Path) -> None:
                adapter.load(path)
                adapter.synchronize()

            yield read


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "checkpoint"))


def test_a_whole_checkpoint_is_read(copy: Path, scratch: Path, restore: Read) -> None:
    assert reads_safely(lambda: restore(copy), scratch, ())
    assert tensors(copy).keys() == {"global_step", "weight"}


@pytest.mark.parametrize(
    "state",
    [
        [],
        {},
        {"variables": 1},
        {"variables": "model.ckpt-9", "ranks": []},
        {"variables": "../checkpoint/model.ckpt-4", "ranks": []},
        {"variables": "model.ckpt-4"},
        {"variables": "model.ckpt-4", "ranks": []},
        {"variables": "model.ckpt-4", "ranks": [{"random_ops": 1, "rng": {}}]},
        {"variables": "model.ckpt-4", "ranks": [{"random_ops": {"op": 1 << 70}, "rng": {}}]},
        {"variables": "model.ckpt-4", "ranks": [{"random_ops": {}, "rng": 1}]},
    ],
)
def test_a_state_of_another_form_is_a_checkpoint_error(
    copy: Path, scratch: Path, restore: Read, state: Any
) -> None:
    (copy / STATE_FILE).write_text(json.dumps(state))
    assert not reads_safely(lambda: restore(copy), scratch, CheckpointError)


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("name", [STATE_FILE, DRIFT_FILE])
def test_pickles_are_not_unpickled(
    copy: Path, scratch: Path, restore: Read, name: str, which: int
) -> None:
    harm = copy.parent / "harm"
    (copy / name).write_bytes(harmful_pickles(harm)[which])
    assert not reads_safely(lambda: restore(copy), scratch, CheckpointError)
    assert not harm.exists()


def test_arrays_that_decompress_to_far_more_are_refused(copy: Path, restore: Read) -> None:
    with zipfile.ZipFile(copy / DRIFT_FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(80 << 20))
    with pytest.raises(CheckpointError, match="which is refused as a decompression bomb"):
        restore(copy)


@pytest.mark.parametrize(
    "arrays", [{"0:nothing": np.zeros(1)}, {"0:global_step": np.zeros((2, 2))}]
)
def test_statistics_of_another_model_are_a_checkpoint_error(
    copy: Path, restore: Read, arrays: dict[str, Any]
) -> None:
    np.savez(copy / DRIFT_FILE, **arrays)
    with pytest.raises(
        CheckpointError, match=rf"{DRIFT_FILE} of the checkpoint does not fit the trial: "
    ):
        restore(copy)


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x04.", zipped({"x.npy": b""}), zipped({"-9:x.npy": b""})]
)
def test_wrong_form_of_waiting_gradients_is_a_checkpoint_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / WAITING_FILE).write_bytes(data)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("sum", (2,), collections=[WAITING])
        with pytest.raises(
            CheckpointError, match=rf"{WAITING_FILE} cannot be read: .*; the checkpoint is damaged"
        ):
            Waiting(DistributedContext()).load(session, tmp_path)


def readers(restore: Read, path: Path) -> list[Callable[[], Any]]:
    """Return what reads a checkpoint: a run, an estimator, `det verify`."""
    return [
        lambda: restore(path),
        lambda: load_estimator_from_checkpoint_path(path, trial_class=Line),
        lambda: tensors(path),
    ]


def test_variables_that_crash_tensorflow_are_refused(
    copy: Path, scratch: Path, restore: Read
) -> None:
    held, data = entries({"global_step": np.array(4), "weight": np.float32(2)})
    write_bundle(copy / "model.ckpt-4", held, data)
    restore(copy)
    assert tensors(copy) == {"global_step": 4, "weight": 2}
    write_bundle(copy / "model.ckpt-4", {**held, b"weight": b"\xff\xff"}, data)
    for read in readers(restore, copy):
        with pytest.raises(
            CheckpointError,
            match=r"model\.ckpt-4\.index cannot be read: .*; the checkpoint is damaged",
        ):
            read()


def test_reading_one_checkpoint_after_another_changes_neither(
    copy: Path, scratch: Path, restore: Read
) -> None:
    other = Path(shutil.copytree(copy, copy.with_name("other")))
    held, data = entries({"global_step": np.array(9), "weight": np.float32(9)})
    write_bundle(other / "model.ckpt-4", held, data)
    before = {file: file.read_bytes() for file in copy.parent.rglob("*") if file.is_file()}
    for path in (copy, other, other, copy):
        restore(path)
    assert {file: file.read_bytes() for file in copy.parent.rglob("*") if file.is_file()} == before


def test_an_event_that_claims_more_than_its_file_is_refused(copy: Path, restore: Read) -> None:
    events = copy / "eval" / "events.out.tfevents.1"
    events.parent.mkdir()
    events.write_bytes((1 << 40).to_bytes(8, "little") + bytes(8))
    with pytest.raises(CheckpointError, match="a record is longer than the file"):
        restore(copy)


def test_only_loading_a_saved_model_runs_it(copy: Path, scratch: Path, restore: Read) -> None:
    """It is a program, whose operations may write files.

    SECURITY.md says to load it only if one trusts it.
    """
    ran = copy.parent / "ran"
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        writes = tf.io.write_file(str(ran), "x")
        builder = tf.compat.v1.saved_model.Builder(str(copy / "model"))
        builder.add_meta_graph_and_variables(session, ["serve"], main_op=writes)
        builder.save()
    restore(copy)
    tensors(copy)
    export_saved_model(copy, scratch / "exported")
    assert not ran.exists()
    load_estimator_from_checkpoint_path(copy)
    assert ran.exists()


def test_a_damaged_saved_model_is_a_checkpoint_error(copy: Path) -> None:
    (copy / "model").mkdir()
    (copy / "model" / "saved_model.pb").write_bytes(b"\xff\xff")
    with pytest.raises(
        CheckpointError, match=r"model cannot be read: .*; the checkpoint is damaged"
    ):
        load_estimator_from_checkpoint_path(copy)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 20), mutate=mutations())
def test_mutated_checkpoints_are_read_or_refused(
    good: Path, scratch: Path, restore: Read, which: int, mutate: Callable[[bytes], bytes]
) -> None:
    """By a run, as an estimator, and for `det verify`."""
    copy = scratch / "checkpoint"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(good, copy)
    mutate_one([file for file in copy.rglob("*") if file.is_file()], which, mutate)
    for read in readers(restore, copy):
        reads_safely(read, scratch, CheckpointError)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(1, 2), mutate=mutations())
def test_mutated_entries_of_variables_are_read_or_refused(
    good: Path, scratch: Path, restore: Read, which: int, mutate: Callable[[bytes], bytes]
) -> None:
    """Their checksums are right, so that TensorFlow reads them."""
    copy = scratch / "entries"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(good, copy)
    held, data = entries({"global_step": np.array(4), "weight": np.float32(2)})
    name = list(held)[which]
    write_bundle(copy / "model.ckpt-4", {**held, name: mutate(held[name])}, data)
    for read in readers(restore, copy):
        reads_safely(read, scratch, CheckpointError)
