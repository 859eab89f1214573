"""The storages that det brings pass the suite that strangers' storages inherit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from det_core.storage import FsspecStorage, LocalStorage, Storage
from det_testing import StorageSuite


class TestLocal(StorageSuite):
    @pytest.fixture
    def open_storage(self, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Storage]:
        root = tmp_path_factory.mktemp("local") / "made" / "when needed"
        return lambda: LocalStorage(root)


class TestMemory(StorageSuite):
    @pytest.fixture
    def open_storage(self) -> Callable[[], Storage]:
        url = f"memory://bucket-{uuid4()}/some/prefix"
        return lambda: FsspecStorage(url)


class TestFile(StorageSuite):
    @pytest.fixture
    def open_storage(self, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Storage]:
        url = (
            Path(tmp_path_factory.mktemp("file"), "made", "when needed")
            .as_uri()
            .replace("%20", " ")
        )
        return lambda: FsspecStorage(url)
