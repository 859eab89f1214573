"""Several ranks write one checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from det_core.checkpoint import Manifest, read_checkpoint, write_sharded_checkpoint
from det_core.errors import CheckpointError, StorageError
from det_core.storage import FsspecStorage, LocalStorage, Storage


class Ranks:
    """Threads that gather from one another; a rank that stays away breaks the gathering for all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size, timeout=20)
        self._values: list[Any] = [None] * size

    def allgather(self, rank: int, value: Any) -> Sequence[Any]:
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values

    def __call__(self, work: Callable[[int, Callable[[Any], Sequence[Any]]], Any]) -> list[Any]:
        """Return what each rank returned or raised."""
        results: list[Any] = [None] * self.size

        def run(rank: int) -> None:
            try:
                results[rank] = work(rank, lambda value: self.allgather(rank, value))
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results


@pytest.fixture(params=["local", "memory", "file"])
def open_storage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Storage]:
    url = {"memory": f"memory://{uuid4()}", "file": f"file://{tmp_path}/storage"}.get(request.param)
    return lambda: FsspecStorage(url) if url else LocalStorage(tmp_path / "storage")


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    found = [tmp_path / f"rank{rank}" for rank in range(3)]
    for rank, folder in enumerate(found):
        folder.mkdir()
        (folder / f"shard-{rank}").write_text(f"of rank {rank}")
        (folder / "common").write_text("the same everywhere")
    return found


def _write(
    open_storage: Callable[[], Storage],
    folders: Sequence[Path | None],
    *,
    metadata: Callable[[int], dict[str, Any]] = lambda rank: {},
    selectors: Sequence[Callable[[str], bool] | None] | None = None,
    uuid: str | None = None,
) -> list[Any]:
    return Ranks(len(folders))(
        lambda rank, allgather: write_sharded_checkpoint(
            open_storage(),
            folders[rank],
            rank=rank,
            allgather=allgather,
            framework="core",
            batches=10 + rank,
            uuid=uuid,
            selector=selectors[rank] if selectors else None,
            metadata=metadata(rank),
        )
    )


def test_the_ranks_directories_become_one_checkpoint(
    open_storage: Callable[[], Storage], folders: list[Path]
) -> None:
    """With one manifest, the same on all ranks, and metadata.json among the files."""
    manifests = _write(open_storage, folders, metadata=lambda rank: {"ranks": {str(rank): rank}})
    assert isinstance(manifests[0], Manifest)
    assert manifests == [manifests[0]] * 3
    assert list(manifests[0].files) == ["common", "metadata.json", "shard-0", "shard-1", "shard-2"]
    assert manifests[0].metadata == {"ranks": {"0": 0, "1": 1, "2": 2}}
    assert manifests[0].batches == 10
    with read_checkpoint(open_storage(), manifests[0].uuid) as (directory, found):
        assert found == manifests[0]
        assert [(directory / f"shard-{rank}").read_text() for rank in range(3)] == [
            f"of rank {n}" for n in range(3)
        ]
        assert '"ranks"' in (directory / "metadata.json").read_text()


def test_ranks_may_share_a_directory_or_have_none(
    open_storage: Callable[[], Storage], folders: list[Path]
) -> None:
    """Ranks of one node share, others have nothing to add."""
    manifests = _write(open_storage, [None, folders[1], folders[1], folders[2]])
    assert list(manifests[0].files) == ["common", "metadata.json", "shard-1", "shard-2"]
    with read_checkpoint(open_storage(), manifests[0].uuid) as (_, found):
        assert found == manifests[3]


def test_selectors_pick_from_a_shared_directory(
    open_storage: Callable[[], Storage], folders: list[Path]
) -> None:
    """Each rank brings what it picked."""
    (folders[0] / "more").touch()
    selectors = [lambda name: name == "shard-0", lambda name: name == "more"]
    manifests = _write(open_storage, [folders[0], folders[0]], selectors=selectors)
    assert list(manifests[0].files) == ["metadata.json", "more", "shard-0"]


def test_dets_own_files_in_a_source_are_left_where_they_are(
    open_storage: Callable[[], Storage], folders: list[Path]
) -> None:
    """A directory that was downloaded can be uploaded; the user's copy stays as it is."""
    (folders[0] / "manifest.json").write_text("old")
    (folders[1] / "metadata.json").write_text("old")
    manifest = _write(open_storage, folders)[0]
    with read_checkpoint(open_storage(), manifest.uuid) as (directory, _):
        assert '"det_version"' in (directory / "metadata.json").read_text()
    assert (folders[0] / "manifest.json").read_text() == "old"


def test_conflicting_files_are_refused_on_every_rank(
    open_storage: Callable[[], Storage], folders: list[Path]
) -> None:
    """On shared filesystems as elsewhere, and nothing is published."""
    (folders[1] / "common").write_text("something else")
    for error in _write(open_storage, folders):
        assert isinstance(error, CheckpointError)
        assert "common differs between ranks [0, 1, 2]" in str(error)
    assert list(open_storage().list()) == []


def test_conflicting_metadata_is_refused_on_every_rank(
    open_storage: Callable[[], Storage], folders: list[Path]
) -> None:
    errors = _write(open_storage, folders, metadata=lambda rank: {"a": {"b": rank}})
    assert [str(error) for error in errors] == [str(errors[0])] * 3
    assert "metadata conflicts at a/b: rank 1 gives 1, a rank before it 0" in str(errors[0])
    assert list(open_storage().list()) == []


def test_a_rank_that_fails_is_named_on_the_others(
    open_storage: Callable[[], Storage], folders: list[Path]
) -> None:
    """None waits for ever; the rank itself raises its own error."""
    (folders[1] / "odd").symlink_to("/nowhere")
    errors = _write(open_storage, folders)
    assert str(errors[1]).startswith("odd is neither a file nor a directory")
    for error in (errors[0], errors[2]):
        assert isinstance(error, CheckpointError)
        assert str(error).startswith(
            "rank 1 failed to write its part of the checkpoint: CheckpointError: odd is"
        )
    assert list(open_storage().list()) == []


def test_a_uuid_that_is_taken_is_refused_on_every_rank(
    open_storage: Callable[[], Storage], folders: list[Path]
) -> None:
    """And the checkpoint that has it stays."""
    first = _write(open_storage, folders, uuid="taken")[0]
    errors = _write(open_storage, folders, uuid="taken")
    assert isinstance(errors[0], StorageError)
    assert all(
        "rank 0 failed" in str(error) and "is already in" in str(error) for error in errors[1:]
    )
    with read_checkpoint(open_storage(), "taken") as (_, manifest):
        assert manifest == first


def test_a_rank_that_cannot_write_undoes_the_checkpoint(
    tmp_path: Path, folders: list[Path]
) -> None:
    """What the others had put is removed."""
    places = [LocalStorage(tmp_path / name) for name in ("storage", "storage", "mounted elsewhere")]
    errors = Ranks(3)(
        lambda rank, allgather: write_sharded_checkpoint(
            places[rank],
            folders[rank],
            rank=rank,
            allgather=allgather,
            framework="core",
            batches=1,
            uuid="one",
        )
    )
    assert isinstance(errors[2], StorageError)
    assert "checkpoint one was not begun in" in str(errors[2])
    assert "rank 2 failed" in str(errors[0])
    assert list((tmp_path / "storage").iterdir()) == []
