"""A checkpoint is fetched and verified once on each host, by one of its ranks, and read by all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from det_core import CheckpointError, DistributedContext
from det_core.checkpoint import write_checkpoint
from det_core.run import read_on_host
from det_core.storage import LocalStorage, Selector

from .conftest import on_hosts


class Fetched(LocalStorage):
    """Fetches a copy for each that asks, as an object store does, and takes it away afterwards."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.copies: list[Path] = []

    @contextmanager
    def restore(self, uuid: str, selector: Selector | None = None) -> Iterator[Path]:
        copy = self.root.parent / f"copy-{len(self.copies)}"
        self.copies.append(copy)
        self.download(uuid, copy, selector)
        yield copy
        for file in copy.iterdir():
            file.unlink()


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Fetched, str]:
    storage = Fetched(tmp_path / "checkpoints")
    manifest = write_checkpoint(
        storage, lambda path: path.joinpath("weights").write_text("w"), framework="fake", batches=3
    )
    return storage, manifest.uuid


@pytest.mark.parametrize("hosts", [(1,), (4,), (2, 2), (1, 3)])
def test_each_host_fetches_it_once_and_each_rank_reads_it(
    ranks: Any, stored: Any, hosts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("det_core.backends._words.pickle")  # what det itself says needs none
    storage, uuid = stored

    def read(backend: Any) -> tuple[str, int]:
        with read_on_host(DistributedContext.from_backend(backend), storage, uuid) as (path, manifest):
            return path.joinpath("weights").read_text(), manifest.batches

    assert ranks(read, places=on_hosts(*hosts)) == [("w", 3)] * sum(hosts)
    assert len(storage.copies) == len(hosts)


def test_what_is_wrong_with_it_every_rank_says(ranks: Any, stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("det_core.backends._words.pickle")
    storage, uuid = stored
    storage.root.joinpath(uuid, "weights").write_text("x")

    def read(backend: Any) -> None:
        with read_on_host(DistributedContext.from_backend(backend), storage, uuid):
            raise AssertionError("it was altered")

    said = ranks(read, places=on_hosts(3))
    assert [type(each) for each in said] == [CheckpointError] * 3
    assert all(str(each).startswith(f"checkpoint {uuid}: weights") for each in said)
