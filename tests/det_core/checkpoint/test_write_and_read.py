"""A checkpoint is read as it was written, or not at all."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from random import Random

import pytest

from det_core.checkpoint import Manifest, read_checkpoint, write_checkpoint
from det_core.errors import CheckpointError, StorageError
from det_core.storage import LocalStorage, Storage

WAY_OUT = "; go on from an older one: det resume EXPERIMENT --checkpoint UUID"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "storage")


@pytest.fixture
def manifest(storage: LocalStorage) -> Manifest:
    return write_checkpoint(
        storage,
        _fill,
        framework="torch",
        framework_version="2.13.0",
        batches=120,
        experiment_id=3,
        trial_id=14,
        metadata={"note": "mine", "shape": (2, 3), "loss": float("nan")},
    )


def _fill(directory: Path) -> None:
    (directory / "weights.pt").write_bytes(Random(1).randbytes(50_000))
    (directory / "code").mkdir()
    (directory / "code" / "model_def.py").write_text("x = 1\n")
    (directory / "empty").touch()


def test_what_was_written_is_read(storage: LocalStorage, manifest: Manifest) -> None:
    """The manifest too, field for field."""
    with read_checkpoint(storage, manifest.uuid) as (directory, found):
        assert found == manifest
        assert (directory / "weights.pt").read_bytes() == Random(1).randbytes(50_000)
        assert (directory / "code" / "model_def.py").read_text() == "x = 1\n"


def test_the_manifest_tells_where_the_checkpoint_comes_from(manifest: Manifest) -> None:
    """Position, trial, versions, time, and every file but itself."""
    assert (manifest.framework, manifest.batches, manifest.experiment_id, manifest.trial_id) == (
        "torch",
        120,
        3,
        14,
    )
    assert manifest.versions == {
        "det-core": version("det-training-core"),
        "python": platform.python_version(),
        "torch": "2.13.0",
    }
    assert datetime.now(UTC) - manifest.created < timedelta(minutes=1)
    assert list(manifest.files) == ["code/model_def.py", "empty", "metadata.json", "weights.pt"]
    assert manifest.files["weights.pt"].size == 50_000
    assert manifest.metadata == {"note": "mine", "shape": [2, 3], "loss": None}


@pytest.mark.process
def test_digests_are_those_of_sha256sum(storage: LocalStorage, manifest: Manifest) -> None:
    """So that a person can check a checkpoint without det."""
    lines = subprocess.check_output(
        ["sha256sum", *manifest.files], cwd=storage.url(manifest.uuid), text=True
    )
    found = {name: digest for digest, name in (line.split() for line in lines.splitlines())}
    assert found == {name: entry.digest for name, entry in manifest.files.items()}


def test_readers_of_determineds_layout_find_metadata_json(
    storage: LocalStorage, manifest: Manifest
) -> None:
    """With the user's metadata beside det's."""
    assert json.loads((Path(storage.url(manifest.uuid)) / "metadata.json").read_text()) == {
        "steps_completed": 120,
        "framework": "torch-2.13.0",
        "det_version": version("det-training-core"),
        "note": "mine",
        "shape": [2, 3],
        "loss": None,
    }


def test_a_uuid_is_made_or_given(storage: LocalStorage, manifest: Manifest) -> None:
    """Each is another one."""
    given = write_checkpoint(storage, _fill, uuid="given", framework="x", batches=1)
    made = write_checkpoint(storage, _fill, framework="x", batches=1)
    assert list(storage.list()) == sorted([manifest.uuid, given.uuid, made.uuid])


def test_a_downloaded_checkpoint_can_be_written_again(
    storage: LocalStorage, manifest: Manifest
) -> None:
    """Its old manifest.json and metadata.json are replaced."""
    again = write_checkpoint(
        storage, lambda path: storage.download(manifest.uuid, path), framework="torch", batches=240
    )
    with read_checkpoint(storage, again.uuid) as (directory, found):
        assert found.batches == 240
        assert json.loads((directory / "metadata.json").read_text())["steps_completed"] == 240


def test_a_trial_that_raises_while_saving_leaves_nothing(storage: LocalStorage) -> None:
    """And its error comes through."""

    def write(directory: Path) -> None:
        _fill(directory)
        raise ZeroDivisionError("in the trial")

    with pytest.raises(ZeroDivisionError, match="in the trial"):
        write_checkpoint(storage, write, framework="x", batches=1)
    assert list(storage.root.iterdir()) == []


def test_a_link_to_a_file_becomes_the_file(storage: LocalStorage, tmp_path: Path) -> None:
    """What it pointed at may be gone by the time the checkpoint is read."""
    (tmp_path / "outside").write_text("content")

    def write(directory: Path) -> None:
        (directory / "link").symlink_to(tmp_path / "outside")

    manifest = write_checkpoint(storage, write, framework="x", batches=1)
    (tmp_path / "outside").unlink()
    with read_checkpoint(storage, manifest.uuid) as (directory, _):
        assert (directory / "link").read_text() == "content"
        assert not (directory / "link").is_symlink()


@pytest.mark.parametrize(
    "make",
    [lambda path: path.symlink_to("/nowhere"), lambda path: path.symlink_to("/tmp"), os.mkfifo],
    ids=["broken link", "link to a directory", "pipe"],
)
def test_what_is_no_file_is_refused_when_it_is_saved(
    storage: LocalStorage, make: Callable[[Path], None]
) -> None:
    """Not when it is read."""
    with pytest.raises(
        CheckpointError, match=r"^code/odd is neither a file nor a directory; a checkpoint holds"
    ):
        write_checkpoint(
            storage,
            lambda path: (_fill(path), make(path / "code" / "odd")),
            framework="x",
            batches=1,
        )
    assert list(storage.list()) == []


def test_metadata_that_is_not_json_is_refused(storage: LocalStorage) -> None:
    """Before anything is written."""
    with pytest.raises(
        CheckpointError,
        match=r"checkpoint metadata must be plain JSON: .*object.*; convert it first",
    ):
        write_checkpoint(storage, _fill, framework="x", batches=1, metadata={"model": object()})
    assert list(storage.list()) == []


def test_a_file_name_that_is_not_utf8_is_refused(storage: LocalStorage) -> None:
    """Object stores keep no such names."""

    def write(directory: Path) -> None:
        Path(os.fsdecode(os.fsencode(directory) + b"/\xff")).touch()

    with pytest.raises(CheckpointError, match=r"is not UTF-8; rename that file"):
        write_checkpoint(storage, write, framework="x", batches=1)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda path: (path / "weights.pt").unlink(),
            "weights.pt is missing, 50000 bytes expected" + WAY_OUT,
        ),
        (
            lambda path: os.truncate(path / "weights.pt", 49_999),
            "weights.pt has 49999 bytes, 50000 expected: it was cut short" + WAY_OUT,
        ),
        (
            lambda path: os.truncate(path / "weights.pt", 50_001),
            "weights.pt has 50001 bytes, 50000 expected: it was altered" + WAY_OUT,
        ),
        (
            lambda path: (path / "code" / "more.py").touch(),
            "code/more.py is there, but not in manifest.json" + WAY_OUT,
        ),
        (
            lambda path: (path / "export").symlink_to("/etc"),
            "export is there, but not in manifest.json" + WAY_OUT,
        ),
        (
            lambda path: (path / "manifest.json").unlink(),
            " has no manifest.json: it was cut short, or det did not write it" + WAY_OUT,
        ),
        (
            lambda path: _replace_by_a_fifo(path / "manifest.json"),
            "manifest.json: it is no regular file" + WAY_OUT,
        ),
        (
            lambda path: _replace_by_a_fifo(path / "weights.pt"),
            "weights.pt is no regular file" + WAY_OUT,
        ),
        (
            lambda path: os.truncate(path / "manifest.json", 100),
            "manifest.json cannot be read (JSONDecodeError: ",
        ),
        (
            lambda path: (path / "manifest.json").write_text("[]"),
            "manifest.json cannot be read (TypeError: ",
        ),
        (
            lambda path: (path / "manifest.json").write_text("{}"),
            "manifest.json cannot be read (KeyError: 'format')",
        ),
        (
            lambda path: (path / "manifest.json").write_bytes(b"\xff"),
            "manifest.json cannot be read (Unicode",
        ),
        (
            lambda path: _edit(path / "manifest.json", '"batches": 120', '"batches": 121'),
            "manifest.json was altered: its seal does not match" + WAY_OUT,
        ),
        (
            lambda path: _edit(path / "manifest.json", '"format": 1', '"format": 2'),
            " has format 2, and this det reads 1; upgrade det",
        ),
    ],
)
def test_a_damaged_checkpoint_says_what_is_wrong_with_it(
    storage: LocalStorage, manifest: Manifest, damage: Callable[[Path], None], message: str
) -> None:
    """In one line with the checkpoint, the file, what was expected and found, and the way out."""
    damage(Path(storage.url(manifest.uuid)))
    with pytest.raises(CheckpointError) as raised, read_checkpoint(storage, manifest.uuid):
        pytest.fail("the body ran")
    assert str(raised.value).startswith(f"checkpoint {manifest.uuid}")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def _replace_by_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("seed", range(40))
def test_any_altered_byte_is_found(storage: LocalStorage, manifest: Manifest, seed: int) -> None:
    """In any file, the manifest among them."""
    random = Random(seed)
    directory = Path(storage.url(manifest.uuid))
    path = random.choice(
        [path for path in sorted(directory.rglob("*")) if path.is_file() and path.stat().st_size]
    )
    data = bytearray(path.read_bytes())
    meaningful = [
        where for where, byte in enumerate(data) if byte not in b" \n"
    ]  # not the manifest's indentation
    data[random.choice(meaningful)] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=path.name), read_checkpoint(storage, manifest.uuid):
        pytest.fail("the body ran")


def test_the_digests_of_an_altered_file_are_told(storage: LocalStorage, manifest: Manifest) -> None:
    """What was expected and what was found."""
    (Path(storage.url(manifest.uuid)) / "code" / "model_def.py").write_text("x = 2\n")
    expected = manifest.files["code/model_def.py"].digest
    message = (
        rf"code/model_def.py has the SHA-256 [0-9a-f]{{64}}, {expected} expected: it was altered"
    )
    with pytest.raises(CheckpointError, match=message), read_checkpoint(storage, manifest.uuid):
        pytest.fail("the body ran")


def test_what_python_caches_beside_code_is_no_damage(
    storage: LocalStorage, manifest: Manifest
) -> None:
    """Importing a model from a checkpoint must not spoil it."""
    cache = Path(storage.url(manifest.uuid)) / "code" / "__pycache__"
    cache.mkdir()
    (cache / "model_def.cpython-311.pyc").write_bytes(b"cached")
    with read_checkpoint(storage, manifest.uuid) as (_, found):
        assert found == manifest


def test_a_selector_limits_what_is_verified(storage: LocalStorage, manifest: Manifest) -> None:
    """Files that nobody asked for are not read."""
    (Path(storage.url(manifest.uuid)) / "weights.pt").unlink()
    with read_checkpoint(storage, manifest.uuid, lambda name: name.startswith("code/")) as (
        directory,
        found,
    ):
        assert (directory / "code" / "model_def.py").read_text() == "x = 1\n"
        assert found == manifest


def test_an_absent_checkpoint_is_the_storages_error(storage: LocalStorage) -> None:
    """It was never here, or was deleted."""
    with (
        pytest.raises(StorageError, match="no checkpoint gone in"),
        read_checkpoint(storage, "gone"),
    ):
        pytest.fail("the body ran")


def test_a_manifest_with_fields_of_a_later_det_is_read(
    storage: LocalStorage, manifest: Manifest
) -> None:
    """As long as the format is the same."""
    from det_core.checkpoint.manifest import _seal

    path = Path(storage.url(manifest.uuid)) / "manifest.json"
    document = json.loads(path.read_text())
    del document["seal"]
    document["colour"] = "blue"
    path.write_text(json.dumps({**document, "seal": _seal(document)}))
    with read_checkpoint(storage, manifest.uuid) as (_, found):
        assert found == manifest


WRITER = textwrap.dedent("""
    import sys
    from det_core.checkpoint import write_checkpoint
    from det_core.storage import FsspecStorage, LocalStorage

    storage = LocalStorage(sys.argv[2]) if sys.argv[1] == "local" else FsspecStorage(f"file://{sys.argv[2]}")
    print("ready", flush=True)
    def write(directory):
        for part in range(3):
            (directory / f"part-{part}").write_bytes(bytes([part]) * 200_000)
    for n in range(1000):
        write_checkpoint(storage, write, framework="x", batches=n)
    """)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["local", "file"])
def test_every_checkpoint_that_a_killed_writer_leaves_is_sound(tmp_path: Path, kind: str) -> None:
    """Eight writers are killed at random moments.

    Whatever is listed then reads without an error.
    """
    from det_core.storage import FsspecStorage

    moments, environment = Random(11), {**os.environ, "TMPDIR": str(tmp_path)}
    root = tmp_path / "storage"
    for _ in range(8):
        command = [sys.executable, "-c", WRITER, kind, str(root)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(moments.uniform(0.02, 0.15))
            writer.kill()
    storage: Storage = LocalStorage(root) if kind == "local" else FsspecStorage(f"file://{root}")
    listed = list(storage.list())
    assert listed
    for uuid in listed:
        with read_checkpoint(storage, uuid) as (_, manifest):
            assert len(manifest.files) == 4
