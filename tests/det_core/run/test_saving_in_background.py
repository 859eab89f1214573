"""A checkpoint that is written while training goes on.

It is in a real directory, in a storage that can be held up.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from det_core import (
    CheckpointSink,
    Every,
    LocalHost,
    Loop,
    Plugins,
    Schedule,
    StorageError,
    Target,
    run_trial,
)
from det_core.checkpoint import read_checkpoint
from det_core.config import parse
from det_core.storage import LocalStorage
from det_core.train.async_writer import AsyncCheckpointWriter, PendingSave
from det_core.train.saving import PROGRESS_FILE, Saving
from det_testing import Runs, fake_hooks, fakes

SECONDS = 20.0
EACH = Schedule(report=Every(1), checkpoint=Every(2), policy="none")


class Held(LocalStorage):
    """Lets a checkpoint be filled only when `free` is set.

    It counts how many are being filled at once.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.free, self.begun = threading.Event(), threading.Event()
        self.now = self.most = 0
        self.refuse: Callable[[int], bool] = lambda number: False
        self.number = 0

    @contextmanager
    def store(self, uuid: str) -> Iterator[Path]:
        self.number += 1
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.set()
        try:
            assert self.free.wait(SECONDS), "nobody let the checkpoint be written"
            if self.refuse(self.number):
                raise StorageError("the disk is full")
            with super().store(uuid) as path:
                yield path
        finally:
            self.now -= 1


class Copying(fakes.OwnedAdapter):
    """Copies its state, and does as the test says at each batch."""

    at: Callable[[int], None] = staticmethod(lambda number: None)

    def snapshot(self) -> Callable[[Path], None]:
        with TemporaryDirectory() as folder:
            self.save(Path(folder))
            copied = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
        return lambda path: (
            [(path / name).write_bytes(data) for name, data in copied.items()] and None
        )

    def train(self, loop: Loop) -> None:
        for number in loop.batches(range(loop.done, 100)):
            metrics = self.training.batch(number)
            self.at(number + 1)
            loop.step(metrics)


class Job:
    """One run whose checkpoints can be held up."""

    def __init__(self, tmp_path: Path) -> None:
        plugins = Plugins(strict=True)
        plugins.register(fake_hooks, "fakes")
        self.runs = Runs(plugins, fakes.OwnedOneVar, tmp_path)
        self.storage = Held(tmp_path / "checkpoints")
        self.host = Telling(Target(n=8), self.storage)

    def __call__(self, at: Callable[[int], None], *, asynchronous: bool = True, **more: Any) -> Any:
        adapter = type("At", (Copying,), {"at": staticmethod(at)})
        framework = dataclasses.replace(self.runs.framework, load=lambda: adapter)
        info = dataclasses.replace(self.runs.info(), **more)
        if not asynchronous:
            config = parse({"optimizations": {"asynchronous_checkpoints": False}}).config
            info = dataclasses.replace(info, config=config)
        keep = CheckpointSink(storage=self.storage)
        return run_trial(
            framework, fakes.OwnedOneVar, info, self.host, keep, schedule=lambda adapter: EACH
        )

    @property
    def saved(self) -> list[int]:
        return [manifest.batches for manifest, _ in self.host.checkpoints]

    def weight(self, index: int) -> Any:
        return self.file(index, fakes.STATE_FILE)

    def file(self, index: int, name: str) -> Any:
        with read_checkpoint(self.storage, self.host.checkpoints[index][0].uuid) as (path, _):
            return json.loads((path / name).read_text())


class Telling(LocalHost):
    """Notes in which order it is told of things, and that what it is told of is whole."""

    def __init__(self, target: Target, storage: Held) -> None:
        super().__init__(target)
        self.events: list[tuple[str, int]] = []
        self._storage = storage

    def checkpointed(self, manifest: Any, storage: str) -> None:
        assert self._storage.exists(manifest.uuid)
        self.events.append(("checkpoint", manifest.batches))
        super().checkpointed(manifest, storage)

    def validated(self, batches: int, metrics: Any, length: int | None) -> Target:
        self.events.append(("validated", batches))
        return super().validated(batches, metrics, length)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_training_goes_on_while_the_state_of_before_is_written(job: Job, tmp_path: Path) -> None:
    def at(number: int) -> None:
        if number == 4:
            assert job.storage.begun.wait(SECONDS)
            assert job.saved == []  # the driver does not hear of what is not whole
            job.storage.free.set()

    job(at)
    blocking = Job(tmp_path / "blocking")
    blocking.storage.free.set()
    blocking(lambda number: None, asynchronous=False)
    assert job.saved == blocking.saved == [2, 4, 6, 8]
    assert [job.weight(n) for n in range(4)] == [blocking.weight(n) for n in range(4)]
    assert job.weight(0) != job.weight(1)


def test_switched_off_training_waits(job: Job) -> None:
    job.storage.free.set()
    job(
        lambda number: (
            job.saved == list(range(2, number, 2)) or pytest.fail(f"{job.saved} at {number}")
        ),
        asynchronous=False,
    )
    assert job.saved == [2, 4, 6, 8]


def test_two_saves_never_overlap(job: Job) -> None:
    release = threading.Timer(0.3, job.storage.free.set)  # by then the second one has asked
    release.start()
    job(lambda number: None)
    release.join()
    assert (job.saved, job.storage.most) == ([2, 4, 6, 8], 1)


def test_a_preemption_right_after_a_save_began_waits_for_it(job: Job) -> None:
    def at(number: int) -> None:
        if number == 3:
            job.host.preempted.raised = True
            threading.Timer(0.2, job.storage.free.set).start()

    assert job(at).value == "preempted"
    assert job.saved == [2, 3]
    assert list(job.storage.list()) == sorted(manifest.uuid for manifest, _ in job.host.checkpoints)


def test_preemption_at_a_pending_checkpoint_saves_no_other(job: Job) -> None:
    class Preempting(Telling):
        def report(self, group: str, batches: int, metrics: Any) -> None:
            super().report(group, batches, metrics)
            if batches == 2:
                self.preempted.raised = True
                threading.Timer(0.2, job.storage.free.set).start()

    job.host = Preempting(Target(n=8), job.storage)
    assert job(lambda number: None).value == "preempted"
    assert job.saved == [2]


def test_the_searcher_hears_of_the_end_when_all_is_published(job: Job) -> None:
    def at(number: int) -> None:
        if number == 8:
            threading.Timer(0.2, job.storage.free.set).start()
        elif number == 7:
            deadline = time.monotonic() + SECONDS
            while job.saved != [2, 4, 6] and time.monotonic() < deadline:
                time.sleep(0.01)
            job.storage.free.clear()

    job.storage.free.set()
    job(at)
    assert job.host.events == [
        ("checkpoint", 2),
        ("checkpoint", 4),
        ("checkpoint", 6),
        ("checkpoint", 8),
        ("validated", 8),
    ]


def test_failed_write_fails_the_run_at_its_next_boundary(job: Job) -> None:
    job.storage.refuse = lambda number: number == 2
    job.storage.free.set()
    trained: list[int] = []
    with pytest.raises(StorageError, match="the disk is full"):
        job(trained.append)
    assert job.saved == [2]
    assert trained[-1] < 8
    assert len(list(job.storage.list())) == 1


def test_training_error_leaves_the_checkpoint_begun_before_it(job: Job) -> None:
    def at(number: int) -> None:
        if number == 3:
            threading.Timer(0.2, job.storage.free.set).start()
            raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        job(at)
    assert job.saved == [2]


def test_training_error_is_raised_and_lost_checkpoint_is_logged(job: Job, caplog: Any) -> None:
    def at(number: int) -> None:
        if number == 3:
            job.storage.refuse = lambda number: True
            job.storage.free.set()
            raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        job(at)
    assert job.saved == []
    assert "the checkpoint that was being written is lost: the disk is full" in caplog.text


def test_who_interrupts_twice_does_not_wait(job: Job) -> None:
    def at(number: int) -> None:
        if number == 3:
            assert job.storage.begun.wait(SECONDS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job(at)
    assert job.storage.now == 1
    job.storage.free.set()


def test_report_in_a_recorded_checkpoint_is_no_longer_kept(job: Job) -> None:
    job.storage.free.set()

    def at(number: int) -> None:
        while number > 2 and (number - 1) // 2 > len(job.saved):
            threading.Event().wait(0.001)  # so that each is recorded before the next boundary

    job(at)
    kept = [
        [batches for _, batches, _ in job.file(index, PROGRESS_FILE)["untold"]]
        for index in range(4)
    ]
    assert kept[:3] == [[1, 2], [3, 4], [5, 6]]


def test_what_is_beside_training_has_one_piece_of_work_at_a_time() -> None:
    done: list[str] = []
    free = threading.Event()
    writer = AsyncCheckpointWriter(
        lambda progress: (
            PendingSave(lambda: free.wait(SECONDS), lambda: done.append("ended"))
            if progress
            else None
        )
    )
    assert not writer.begin(None)
    assert (writer.ended, writer.finish()) == (False, False)
    assert writer.begin("something")
    assert not writer.ended
    with pytest.raises(AssertionError, match="overlap"):
        writer.begin("something else")
    free.set()
    assert writer.finish()
    assert done == ["ended"]
    writer.close()


def test_saving_without_a_snapshot_is_what_it_was(job: Job) -> None:
    job.storage.free.set()
    with job.runs.adapter() as adapter:
        assert adapter.snapshot() is None
        keep = CheckpointSink(storage=job.storage)
        saving = Saving(adapter, job.runs.framework, job.runs.info(), job.host, keep)
        assert not saving.writer.begin(None)
