"""A checkpoint is fetched and verified once on each host, by one of its ranks, and read by all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from det_core import (
    CheckpointError,
    CheckpointSink,
    DistributedContext,
    LocalHost,
    Plugins,
    Stop,
    Target,
    core,
    run_trial,
)
from det_core.checkpoint import write_checkpoint
from det_core.core._train import Steps
from det_core.errors import StorageUnreachable
from det_core.storage import LocalStorage, Selector
from det_core.train.run import read_on_host
from det_testing import Runs, fake_hooks, fakes

from .conftest import on_hosts

pytestmark = pytest.mark.process


class Fetched(LocalStorage):
    """Fetches a copy for each that asks, as an object store does, and takes it away afterwards."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.copies: list[Path] = []
        self.parts: list[Path] = []

    @contextmanager
    def restore(self, uuid: str, selector: Selector | None = None) -> Iterator[Path]:
        copy = Path(tempfile.mkdtemp(dir=self.root.parent))
        (self.parts if selector else self.copies).append(copy)
        self.download(uuid, copy, selector)
        yield copy
        shutil.rmtree(copy)


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
    monkeypatch.delattr("det_node.backends._words.pickle")  # what det itself says needs none
    storage, uuid = stored

    def read(backend: Any) -> tuple[str, int]:
        with read_on_host(DistributedContext.from_backend(backend), storage, uuid) as (
            path,
            manifest,
        ):
            return path.joinpath("weights").read_text(), manifest.batches

    assert ranks(read, places=on_hosts(*hosts)) == [("w", 3)] * sum(hosts)
    assert len(storage.copies) == len(hosts)


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Runs, Fetched, str]:
    """A trial that has trained three batches, and the checkpoint that it left."""
    plugins = Plugins(strict=True)
    plugins.register(fake_hooks, "fakes")
    runs = Runs(plugins, fakes.OwnedOneVar, tmp_path)
    return runs, Fetched(runs.storage.root), runs(3).checkpoints[3]


@pytest.mark.parametrize("hosts", [(1,), (4,), (2, 2)])
def test_resumed_run_fetches_its_checkpoint_once_per_host(
    ranks: Any, trained: Any, hosts: tuple[int, ...]
) -> None:
    """Where it was before it is told beforehand, by a file of a few bytes."""
    runs, storage, uuid = trained

    def go_on(backend: Any) -> Stop:
        distributed = DistributedContext.from_backend(backend)
        info = replace(runs.info(), checkpoint=uuid, distributed=distributed)
        return run_trial(
            runs.framework,
            fakes.OwnedOneVar,
            info,
            LocalHost(Target(n=5)),
            CheckpointSink(storage=storage),
        )

    assert ranks(go_on, places=on_hosts(*hosts)) == [Stop.COMPLETED] * sum(hosts)
    assert (len(storage.copies), len(storage.parts)) == (len(hosts), len(hosts))


def reading(storage: Fetched, uuid: str, *how: Any, **more: Any) -> Any:
    """Return what a rank of a script does that reads a checkpoint."""

    def read(backend: Any) -> str:
        distributed = DistributedContext.from_backend(backend)
        keep = CheckpointSink(storage=storage)
        context = core.CheckpointContext(LocalHost(Target(n=1)), keep, distributed, Steps(), None)
        with context.restore_path(uuid, *how, **more) as path:
            return path.joinpath("weights").read_text()

    return read


@pytest.mark.parametrize("hosts", [(1,), (4,), (2, 2)])
def test_the_ranks_of_a_script_fetch_it_once_on_each_host(
    ranks: Any, stored: Any, hosts: tuple[int, ...]
) -> None:
    assert ranks(reading(*stored), places=on_hosts(*hosts)) == ["w"] * sum(hosts)
    assert len(stored[0].copies) == len(hosts)


def test_ranks_fetch_separately_if_unshared_or_with_a_selector(ranks: Any, stored: Any) -> None:
    storage, _ = stored
    assert (
        ranks(reading(*stored, core.DownloadMode.NoSharedDownload), places=on_hosts(3)) == ["w"] * 3
    )
    assert (
        ranks(reading(*stored, selector=lambda name: name == "weights"), places=on_hosts(3))
        == ["w"] * 3
    )
    assert (len(storage.copies), len(storage.parts)) == (3, 3)


def test_what_is_wrong_with_it_every_rank_says(
    ranks: Any, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("det_node.backends._words.pickle")
    storage, uuid = stored
    storage.root.joinpath(uuid, "weights").write_text("x")

    def read(backend: Any) -> None:
        with read_on_host(DistributedContext.from_backend(backend), storage, uuid):
            raise AssertionError("it was altered")

    said = ranks(read, places=on_hosts(3))
    assert all(isinstance(each, CheckpointError) for each in said)
    assert len(said) == 3
    assert all(str(each).startswith(f"checkpoint {uuid}: weights") for each in said)


def test_ranks_that_cannot_read_what_another_found_say_so(ranks: Any, stored: Any) -> None:
    """As that one would: the storage is then waited for."""
    storage, uuid = LocalStorage(stored[0].root), stored[1]

    def read(backend: Any) -> None:
        with read_on_host(DistributedContext.from_backend(backend), storage, uuid):
            # The kernel refuses to read it with EIO, as a file server that is away does.
            Path("/proc/self/mem").read_bytes()

    assert [type(each) for each in ranks(read, places=on_hosts(3))] == [StorageUnreachable] * 3
