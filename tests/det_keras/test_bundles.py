"""Checkpoints whose claims would make TensorFlow end the process, or allocate without end."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.det_keras.old_checkpoints import FORMATS, MADE, OldTrial
from tests.support.bundles import block, entries, entry, table, write_bundle
from tests.support.crafted import mutate_one, mutations, reads_safely

from det_core import CheckpointError, TrialError
from det_keras import load_model_from_checkpoint_path
from det_keras.bundles import check_records, check_variables

ONE, TWO = np.float32(1.5), np.arange(3)
GOOD, DATA = entries({"one": ONE, "two": TWO})


def extents(*pairs: tuple[int, int]) -> Any:
    whole = entry(1, (4,), size=0)
    piece = whole.slices.add()
    for start, length in pairs:
        piece.extent.add(start=start, length=length)
    return whole


def without_rank() -> Any:
    whole = entry(size=4)
    whole.shape.unknown_rank = True
    return whole


CRAFTED = {
    "another form": (b"\xff\xff", "rror parsing message"),
    "a negative dimension": (entry(shape=(-5,), size=4), "has no shape"),
    "no rank": (without_rank(), "has no shape"),
    "300 dimensions": (entry(shape=(1,) * 300, size=4), "has no shape"),
    "more than memory": (entry(shape=(1 << 40,), size=4), "has 4 bytes, and its shape [1099511627776] needs 4398046511104"),
    "more than 64 bits": (entry(shape=(1 << 40, 1 << 40), size=4), "has 4 bytes, and its shape"),
    "empty strings": (entry(7, (1 << 30,), size=4), "has 4 bytes, and its shape [1073741824] needs"),
    "another size": (entry(size=3), "has 3 bytes, and its shape [] needs 4"),
    "a size beyond the file": (entry(7, (1 << 30,), size=1 << 30), "lies outside of its file"),
    "a negative offset": (entry(size=4, offset=-8), "lies outside of its file"),
    "another shard": (entry(size=4, shard_id=1), "lies in a shard that there is not"),
    "a negative shard": (entry(size=4, shard_id=-1), "lies in a shard that there is not"),
    "no type": (entry(999, size=4), "999"),
    "a resource": (entry(20, size=4), "is of a type that is not saved"),
    "a reference": (entry(101, size=4), "is of a type that is not saved"),
    "a part of another shape": (extents((0, 1), (0, 1)), "has a part of another shape"),
    "a part outside": (extents((3, 2)), "has a part that lies outside of it"),
    "a part before it": (extents((-9, 2)), "has a part that lies outside of it"),
}  # fmt: skip


@pytest.mark.slow
def test_what_tensorflow_saves_is_accepted(tmp_path: Path) -> None:
    """Also variables in parts, strings, and many names that share what they begin with."""
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as session:
        parts = tf.compat.v1.fixed_size_partitioner(3)
        tf.compat.v1.get_variable("parted", (7, 2), partitioner=parts)
        tf.compat.v1.get_variable("text", initializer=tf.constant(["", "a", "b" * 300]))
        for number in range(200):
            tf.compat.v1.get_variable(f"a/long/name/of/a/variable/{number}", (number % 3,))
        session.run(tf.compat.v1.global_variables_initializer())
        prefix = tf.compat.v1.train.Saver(sharded=True).save(
            session, str(tmp_path / "model"), write_meta_graph=False
        )
    check_variables(Path(prefix))
    reader = tf.train.load_checkpoint(str(write_bundle(tmp_path / "crafted", GOOD, DATA)))
    assert reader.get_tensor("one") == ONE
    assert (reader.get_tensor("two") == TWO).all()
    check_variables(tmp_path / "crafted")


@pytest.mark.parametrize("name", CRAFTED)
def test_claims_that_no_checkpoint_makes_are_refused(tmp_path: Path, name: str) -> None:
    held, said = CRAFTED[name]
    held = held if isinstance(held, bytes) else held.SerializeToString()
    prefix = write_bundle(tmp_path / "model", {**GOOD, b"one": held}, DATA)
    with pytest.raises(CheckpointError) as raised:
        check_variables(prefix)
    assert str(raised.value).startswith(f"{prefix}.index cannot be read: ")
    assert said in str(raised.value)


def test_many_tensors_of_the_same_bytes_are_refused(tmp_path: Path) -> None:
    data = bytes(1 << 20)
    held = {
        f"{i:02}".encode(): entry(1, (1 << 18,), size=1 << 20).SerializeToString()
        for i in range(70)
    }
    prefix = write_bundle(tmp_path / "model", {b"": GOOD[b""], **held}, data)
    with pytest.raises(
        CheckpointError, match="1,048,576 bytes unpack to 73,400,320, which is refused"
    ):
        check_variables(prefix)


PAIRS = list(GOOD.items())
TABLES = {
    "nothing": b"",
    "no table": bytes(100),
    "names out of order": table(block(PAIRS[::-1])),
    "a name twice": table(block([*PAIRS, PAIRS[-1]])),
    "a search that begins elsewhere": table(block(PAIRS, (0, 5))),
    "more restarts than bytes": table(block(PAIRS)[:-4] + struct.pack("<I", 1 << 30)),
    "a value beyond its block": table(b"\0\1\xff\xff\xff\xff\x0fa" + block([])),
    "a name without its beginning": table(b"\7\1\0a" + block([])),
    "a number without an end": table(b"\xff" * 12 + block([])),
    "no header": table(block(PAIRS[1:])),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_another_form_are_refused(tmp_path: Path, name: str) -> None:
    prefix = write_bundle(tmp_path / "model", GOOD, DATA)
    prefix.with_name("model.index").write_bytes(TABLES[name])
    with pytest.raises(
        CheckpointError, match=r"model\.index cannot be read: .*; the checkpoint is damaged"
    ):
        check_variables(prefix)


def test_names_that_expand_far_beyond_their_size_are_refused(tmp_path: Path) -> None:
    prefix = write_bundle(tmp_path / "model", GOOD, DATA)
    shared = b"".join(b"\x80\x80\4\2\0" + last.to_bytes(2, "big") for last in range(1, 1100))
    long = b"\0\x80\x80\4\0" + bytes(1 << 16) + shared
    prefix.with_name("model.index").write_bytes(table(long + block([])))
    with pytest.raises(CheckpointError, match="which is refused as a decompression bomb"):
        check_variables(prefix)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 2), mutate=mutations())
def test_mutated_entries_are_refused_or_read_by_tensorflow(
    tmp_path: Path, which: int, mutate: Callable[[bytes], bytes]
) -> None:
    """Their checksums are right.

    TensorFlow ends the process, and this test with it, at what it cannot parse.
    """
    name = list(GOOD)[which]
    prefix = write_bundle(tmp_path / "model", {**GOOD, name: mutate(GOOD[name])}, DATA)
    try:
        check_variables(prefix)
    except CheckpointError:
        return
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        for each in reader.get_variable_to_shape_map():
            reader.get_tensor(each)
    except (tf.errors.OpError, ValueError, IndexError):
        pass


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.builds(lambda mutate: table(mutate(block(PAIRS))), mutations()))
def test_mutated_tables_are_refused_or_read_by_tensorflow(tmp_path: Path, data: bytes) -> None:
    prefix = write_bundle(tmp_path / "model", GOOD, DATA)
    prefix.with_name("model.index").write_bytes(data)
    try:
        check_variables(prefix)
        tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
    except (CheckpointError, tf.errors.OpError, ValueError):
        pass


def test_a_record_that_is_longer_than_its_file_is_refused(tmp_path: Path) -> None:
    """TensorFlow makes room for it first."""
    file = tmp_path / "events.out.tfevents.1"
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(b"abc")
        writer.write(b"")
    check_records(file)
    with file.open("ab") as more:
        more.write((1 << 40).to_bytes(8, "little") + bytes(4))
    with pytest.raises(CheckpointError, match="a record is longer than the file"):
        check_records(file)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(list(FORMATS)), which=st.integers(0, 20), mutate=mutations())
def test_mutated_checkpoints_of_determined_are_read_or_refused(
    tmp_path: Path, name: str, which: int, mutate: Callable[[bytes], bytes]
) -> None:
    """But for the facts that the trial's own code asks for: it raises what it likes."""
    copy = tmp_path / "checkpoint"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(MADE / name, copy)
    mutate_one(
        [file for file in copy.rglob("*") if file.is_file() and file.suffix != ".json"],
        which,
        mutate,
    )
    errors = (CheckpointError, TrialError)
    reads_safely(
        lambda: load_model_from_checkpoint_path(copy, trial_class=OldTrial), tmp_path, errors
    )


def test_the_weights_of_an_old_checkpoint_are_looked_at_first(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(MADE / "weights", tmp_path / "checkpoint"))
    index = next(copy.rglob("*.index"))
    held = {b"": GOOD[b""], b"save_counter/.ATTRIBUTES/VARIABLE_VALUE": b"\xff\xff"}
    write_bundle(index.with_suffix(""), held, DATA)
    with pytest.raises(CheckpointError, match=r"cannot be read: .*the checkpoint is damaged"):
        load_model_from_checkpoint_path(copy, trial_class=OldTrial)
