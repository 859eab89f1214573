"""Tests of any checkpoint storage."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from det_core.errors import StorageError
from det_core.storage import MANIFEST, Storage

from ._suite import Suite


def _manifest(uuid: str) -> bytes:
    return b'{"uuid": "' + uuid.encode() + b'"}'


FILES = {
    "manifest.json": _manifest("one"),
    "metadata.json": b'{"steps_completed": 1}',
    "empty": b"",
    "weights.pt": bytes(range(256)) * 8192,
    "code/model def.py": b"x = 1\n",
    "code/deep/er/naïve.txt": "é".encode(),
}


class StorageSuite(Suite):
    """Tests of a storage.

    Inherit it, and give a function that opens your storage, which is empty at first.
    """

    @pytest.fixture
    def open_storage(self) -> Callable[[], Storage]:
        """Return a function that opens the same storage each time, as another process would."""
        raise NotImplementedError(
            "override `open_storage`: return a function that opens one place, empty at first"
        )

    @pytest.fixture
    def storage(self, open_storage: Callable[[], Storage]) -> Storage:
        return open_storage()

    def test_a_new_place_is_empty_and_can_be_written(self, storage: Storage) -> None:
        """`check` leaves nothing behind."""
        assert list(storage.list()) == []
        storage.check()
        assert list(storage.list()) == []

    def test_what_is_stored_is_restored(self, open_storage: Callable[[], Storage]) -> None:
        """A second object for the same storage restores every byte and every name."""
        _store(open_storage(), "one")
        with open_storage().restore("one") as directory:
            assert _content(directory) == FILES

    def test_files_have_names_and_sizes(self, storage: Storage) -> None:
        """Names are relative POSIX paths, and include the manifest."""
        _store(storage, "one")
        assert storage.files("one") == {name: len(data) for name, data in FILES.items()}

    def test_the_directory_to_fill_is_empty(self, storage: Storage) -> None:
        """It has no file of another checkpoint or of the storage."""
        with storage.store("one") as directory:
            assert list(directory.iterdir()) == []
            _fill(directory)

    def test_nothing_is_seen_before_the_body_ends(
        self, open_storage: Callable[[], Storage]
    ) -> None:
        """A reader never sees an incomplete checkpoint."""
        with open_storage().store("one") as directory:
            _fill(directory)
            _is_absent(open_storage(), "one")
        assert open_storage().exists("one")

    def test_a_body_that_raises_leaves_nothing(self, open_storage: Callable[[], Storage]) -> None:
        """The error is raised unchanged, and the uuid can be used again."""
        storage = open_storage()
        with pytest.raises(ZeroDivisionError), storage.store("one") as directory:  # noqa: PT012
            _fill(directory)
            raise ZeroDivisionError
        _is_absent(open_storage(), "one")
        _store(open_storage(), "one")
        assert open_storage().exists("one")

    def test_a_checkpoint_needs_its_manifest(self, storage: Storage) -> None:
        """The manifest marks a checkpoint as complete."""
        with (
            pytest.raises(StorageError, match=r"one was given no manifest\.json"),
            storage.store("one") as directory,
        ):
            (directory / "weights.pt").write_bytes(b"w")
        _is_absent(storage, "one")

    def test_a_uuid_is_written_once(self, storage: Storage) -> None:
        """The second writer is refused before it writes, and the first one's files are kept."""
        _store(storage, "one")
        with pytest.raises(StorageError, match="one is already"), storage.store("one"):
            pytest.fail("the body ran")
        assert storage.files("one").keys() == FILES.keys()

    def test_an_absent_checkpoint_is_named(self, storage: Storage, tmp_path: Path) -> None:
        assert not storage.exists("gone")
        with pytest.raises(StorageError, match="no checkpoint gone"), storage.restore("gone"):
            pytest.fail("the body ran")
        with pytest.raises(StorageError, match="no checkpoint gone"):
            storage.download("gone", tmp_path)
        with pytest.raises(StorageError, match="no checkpoint gone"):
            storage.files("gone")

    @pytest.mark.parametrize(
        "uuid", ["", ".", "..", ".hidden", "a/b", "../a", "a b", "a\n", "/a", "a*"]
    )
    def test_a_uuid_that_is_no_name_is_refused(self, storage: Storage, uuid: str) -> None:
        """Nothing is written, read or deleted outside the storage."""
        for use in (storage.exists, storage.files, storage.delete, storage.begin, storage.url):
            with pytest.raises(StorageError, match="cannot name a checkpoint"):
                use(uuid)

    def test_a_selector_is_obeyed(self, storage: Storage, tmp_path: Path) -> None:
        """`download` copies exactly the selected files, and `restore` at least those."""
        _store(storage, "one")
        storage.download("one", tmp_path / "new" / "target", lambda name: name.startswith("code/"))
        assert _content(tmp_path / "new" / "target").keys() == {
            "code/model def.py",
            "code/deep/er/naïve.txt",
        }
        with storage.restore("one", lambda name: name == "empty") as directory:
            assert (directory / "empty").read_bytes() == b""

    def test_download_adds_to_a_directory(self, storage: Storage, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text("mine")
        _store(storage, "one")
        storage.download("one", tmp_path)
        assert _content(tmp_path) == FILES | {"mine": b"mine"}

    def test_the_list_is_sorted(self, storage: Storage) -> None:
        for uuid in ("b", "c", "a"):
            _store(storage, uuid)
        assert list(storage.list()) == ["a", "b", "c"]

    def test_a_manifest_of_another_name_is_no_checkpoint(self, storage: Storage) -> None:
        """A directory that was copied or renamed has such a manifest."""
        for uuid in ("one", "two"):
            with storage.store(uuid) as directory:
                _fill(directory, "one")
        assert list(storage.list()) == ["one"]
        assert [uuid for uuid in ("one", "two") if storage.exists(uuid)] == ["one"]

    def test_deleting_removes_the_whole_checkpoint(
        self, open_storage: Callable[[], Storage]
    ) -> None:
        """It deletes no other checkpoint whose uuid begins with the same characters."""
        storage = open_storage()
        _store(storage, "one")
        _store(storage, "one-more")
        assert storage.delete("one") == {}
        _is_absent(open_storage(), "one")
        assert storage.files("one-more").keys() == FILES.keys()

    def test_deleting_twice_is_no_mistake(self, storage: Storage) -> None:
        """A garbage collection that was interrupted starts again."""
        _store(storage, "one")
        assert storage.delete("one") == {}
        assert storage.delete("one") == {}

    @pytest.mark.parametrize("manifest", [{"uuid": "other"}, {"uuid": ["one"]}, [], {}])
    def test_what_no_manifest_confirms_is_not_deleted(
        self, storage: Storage, manifest: Any
    ) -> None:
        """A uuid may come from somebody else's database, and name any directory in the storage."""
        with storage.store("one") as directory:
            (directory / "precious").write_text("data")
            (directory / MANIFEST).write_text(json.dumps(manifest))
        with pytest.raises(
            StorageError, match=r"has no manifest\.json of one, so it is not deleted"
        ):
            storage.delete("one")
        with storage.restore("one") as directory:
            assert (directory / "precious").read_text() == "data"

    @pytest.mark.parametrize(
        ("globs", "left"),
        [
            (["weights.pt"], FILES.keys() - {"weights.pt"}),
            (["*.pt", "empty"], FILES.keys() - {"weights.pt", "empty"}),
            (["*"], {"code/model def.py", "code/deep/er/naïve.txt"}),
            (["code/*"], FILES.keys() - {"code/model def.py"}),
            (["code/**"], FILES.keys() - {"code/model def.py", "code/deep/er/naïve.txt"}),
            (["**/*.txt"], FILES.keys() - {"code/deep/er/naïve.txt"}),
            (["code/**/naïve.*"], FILES.keys() - {"code/deep/er/naïve.txt"}),
            (["code"], FILES.keys()),
            (["../**"], FILES.keys()),
            ([], FILES.keys()),
        ],
    )
    def test_deleting_by_globs_returns_what_is_left(
        self, storage: Storage, globs: list[str], left: set[str]
    ) -> None:
        """The remaining files can still be read."""
        _store(storage, "one")
        expected = {name: len(FILES[name]) for name in left}
        assert storage.delete("one", globs) == expected
        assert storage.files("one") == expected
        with storage.restore("one") as directory:
            assert _content(directory) == {name: FILES[name] for name in left}

    def test_several_writers_make_one_checkpoint(
        self, open_storage: Callable[[], Storage], tmp_path: Path
    ) -> None:
        """Nothing is visible before the commit, and everything after it."""
        _fill(tmp_path)
        chief, other = open_storage(), open_storage()
        chief.begin("one")
        other.put("one", tmp_path, ["weights.pt", "code/model def.py"])
        chief.put("one", tmp_path, ["empty", "metadata.json", "code/deep/er/naïve.txt"])
        _is_absent(open_storage(), "one")
        chief.put("one", tmp_path, ["manifest.json"])
        chief.commit("one")
        with open_storage().restore("one") as directory:
            assert _content(directory) == FILES

    def test_an_aborted_checkpoint_leaves_nothing(
        self, open_storage: Callable[[], Storage], tmp_path: Path
    ) -> None:
        """It can be begun again, and the files from before do not return."""
        _fill(tmp_path)
        chief = open_storage()
        chief.begin("one")
        open_storage().put("one", tmp_path, ["weights.pt"])
        chief.abort("one")
        _is_absent(open_storage(), "one")
        chief.begin("one")
        chief.put("one", tmp_path, ["manifest.json"])
        chief.commit("one")
        assert chief.files("one").keys() == {"manifest.json"}

    def test_aborting_twice_or_after_the_commit_does_nothing(
        self, storage: Storage, tmp_path: Path
    ) -> None:
        """An error handler need not know how far the writing got."""
        _fill(tmp_path)
        storage.abort("one")
        storage.begin("one")
        storage.put("one", tmp_path, FILES)
        storage.commit("one")
        storage.abort("one")
        assert storage.files("one").keys() == FILES.keys()

    def test_a_commit_needs_the_manifest(self, storage: Storage, tmp_path: Path) -> None:
        _fill(tmp_path)
        storage.begin("one")
        storage.put("one", tmp_path, ["weights.pt"])
        with pytest.raises(StorageError, match=r"one was given no manifest\.json"):
            storage.commit("one")
        storage.abort("one")
        _is_absent(storage, "one")

    @pytest.mark.parametrize(
        "name", ["../outside", "/etc/hostname", "code/../../outside", "", "code//x"]
    )
    def test_a_name_that_leads_elsewhere_is_refused(
        self, storage: Storage, tmp_path: Path, name: str
    ) -> None:
        """Files are read only from the source and written only into the checkpoint."""
        storage.begin("one")
        with pytest.raises(StorageError, match="is not a name of a file in a checkpoint"):
            storage.put("one", tmp_path, [name])
        storage.abort("one")

    def test_checkpoints_are_written_side_by_side(
        self, open_storage: Callable[[], Storage]
    ) -> None:
        """Several trials write at the same time, each by its own storage object."""
        uuids = [f"trial-{n}" for n in range(6)]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda uuid: _store(open_storage(), uuid), uuids))
        assert list(open_storage().list()) == uuids
        for uuid in uuids:
            with open_storage().restore(uuid) as directory:
                assert _content(directory) == FILES | {"manifest.json": _manifest(uuid)}

    def test_the_url_names_the_checkpoint(self, storage: Storage) -> None:
        _store(storage, "one")
        assert storage.url("one").endswith("/one")


def _fill(directory: Path, uuid: str = "one") -> None:
    for name, data in (FILES | {"manifest.json": _manifest(uuid)}).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _store(storage: Storage, uuid: str) -> None:
    with storage.store(uuid) as directory:
        _fill(directory, uuid)


def _content(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in found}


def _is_absent(storage: Storage, uuid: str) -> None:
    assert uuid not in storage.list()
    assert not storage.exists(uuid)
