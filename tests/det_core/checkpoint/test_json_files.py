"""The JSON files of a checkpoint may hold anything: what cannot be read is a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from det_core import CheckpointError, Plugins, core
from det_core.checkpoint import read_json_object, write_checkpoint
from det_core.train.load_data import read_load_data
from det_core.train.run import locate
from det_testing import Runs, fake_hooks, fakes

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
NAMES = st.sampled_from(
    ["uuid", "format", "seal", "hparams", "experiment_config", "trial_id", "batches", "x"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
CONTENTS = st.binary(max_size=40) | VALUES.map(lambda value: json.dumps(value).encode())
Reader = Callable[[bytes], object]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Reader]]:
    """Every function that reads a JSON file of a checkpoint, given the content of that file."""
    root = tmp_path_factory.mktemp("checkpoints")
    plugins = Plugins(strict=True)
    plugins.register(fake_hooks, "fakes")
    runs = Runs(plugins, fakes.OwnedOneVar, root)

    def in_file(name: str, read: Callable[[Path], object]) -> Reader:
        directory = root / name
        directory.mkdir()

        def written(content: bytes) -> object:
            (directory / name).write_bytes(content)
            return read(directory)

        return written

    def start(content: bytes) -> object:
        manifest = write_checkpoint(
            runs.storage,
            lambda path: (path / "loop.json").write_bytes(content),
            framework="fake-owned",
            batches=1,
        )
        return locate(replace(runs.info(), checkpoint=manifest.uuid), runs.storage)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DET_HOME", str(root / "home"))
        with core.init(checkpoint_storage=str(root / "stored"), record=False) as context:

            def metadata(content: bytes) -> object:
                with context.checkpoint.store_path() as (path, uuid):
                    (path / "file").touch()
                (root / "stored" / uuid / "metadata.json").write_bytes(content)
                return context.checkpoint.get_metadata(uuid)

            yield [
                in_file("any.json", lambda path: read_json_object(path / "any.json")),
                in_file("load_data.json", read_load_data),
                in_file("manifest.json", context.checkpoint.upload),
                metadata,
                start,
            ]


@given(CONTENTS)
@example(b"")
@example(b"[1]")
@example(b"7")
@example(b'"x"')
@example(b"null")
@example(b"\xff\xfe\x00")
@example(b"9" * 6000)
@example(b"[" * 200_000)
@example(b'{"a":' * 100_000)
@example(b'{"trial_id": 1, "unknown": 2}')
def test_foreign_content_raises_a_checkpoint_error_or_is_read(
    readers: list[Reader], content: bytes
) -> None:
    for read in readers:
        with suppress(CheckpointError):
            read(content)


@pytest.mark.parametrize("content", [b"[1]", b"null", b"{", b"\xff"])
def test_what_is_no_json_object_names_its_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"some\.json .*; the checkpoint is damaged$"):
        read_json_object(file)
    with pytest.raises(CheckpointError, match=r"other\.json is missing; the checkpoint is"):
        read_json_object(tmp_path / "other.json")


def test_metadata_that_was_altered_is_not_returned(tmp_path: Path) -> None:
    with core.init(checkpoint_storage=str(tmp_path), record=False) as context:
        with context.checkpoint.store_path({"steps_completed": 3}) as (path, uuid):
            (path / "file").touch()
        known: dict[str, Any] = context.checkpoint.get_metadata(uuid)
        assert known["steps_completed"] == 3
        (tmp_path / uuid / "metadata.json").write_text(json.dumps(known | {"steps_completed": 4}))
        with pytest.raises(CheckpointError, match=r"metadata\.json has "):
            context.checkpoint.get_metadata(uuid)
