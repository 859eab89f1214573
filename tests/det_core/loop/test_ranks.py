"""Several ranks, each in a thread: they step together and stop together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from det_core import (
    Adapter,
    At,
    Backend,
    DistributedContext,
    Every,
    Loop,
    LoopError,
    Metrics,
    Progress,
    Ranks,
    RunInfo,
    RunLoop,
    Schedule,
    Stop,
    TrialError,
)


class Room:
    """Where the ranks of one run meet."""

    def __init__(self, size: int) -> None:
        self.size, self.values = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=20)
        self.meetings = 0


class Threads(Backend):
    """One rank."""

    def __init__(self, room: Room, rank: int) -> None:
        self._room, self.ranks = room, Ranks(rank=rank, size=room.size)

    def init(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def barrier(self) -> None:
        self._room.barrier.wait()

    def allgather(self, value: Any) -> list[Any]:
        self._room.values[self.ranks.rank] = value
        if self._room.barrier.wait() == 0:
            self._room.meetings += 1
        values = list(self._room.values)
        self._room.barrier.wait()
        return values

    def broadcast(self, value: Any) -> Any:
        return self.allgather(value)[0]


class Counter(Adapter[Any]):
    """Counts batches; each rank's loss is its rank, and a report is the mean over the ranks."""

    def __init__(
        self, context: DistributedContext, each_batch: Callable[[Loop, int, int], None]
    ) -> None:
        self._context, self._each_batch, self.batches = context, each_batch, 0
        self.weight, self.statistics = (
            0.0,
            0.0,
        )  # the first is reduced over the ranks, the second is not
        self.saved_with: list[float] = []

    @classmethod
    def create(cls, trial: Any, run: RunInfo) -> Any:
        raise NotImplementedError

    def train(self, loop: Loop) -> None:
        for _ in loop.batches(iter(int, 1)):
            self._each_batch(loop, self._context.rank, self.batches)
            self.batches += 1
            self.statistics += self._context.rank
            loop.step({"loss": self._context.rank})

    def numbers(self, rows: Any) -> list[dict[str, float]]:
        gathered = self._context.allgather([row["loss"] for row in rows])
        return [{"loss": sum(losses) / len(losses)} for losses in zip(*gathered, strict=True)]

    def validate(self) -> Metrics:
        self.validated_with = self.statistics
        return {"val_loss": sum(self._context.allgather(1.0))}

    def synchronize(self) -> None:
        self.statistics = self._context.broadcast(self.statistics + 1.0)

    def fingerprint(self) -> str:
        return str(self.weight)

    def save(self, path: Path) -> None:
        self.saved_with = [*self.saved_with, self.statistics]

    def load(self, path: Path) -> None:
        pass


def nothing(loop: Loop, rank: int, batch: int) -> None:
    pass


class Together:
    """Runs one trial on three ranks; only the chief's host is a driver's."""

    def __init__(self, kit: Any, driver: Any, schedule: Schedule) -> None:
        self.kit, self.driver, self.schedule = kit, driver, schedule
        self.saved: list[Progress] = []
        self.loops: list[RunLoop] = []
        self.writer: list[Any] = [None, None, None]
        self.adapters: dict[int, Counter] = {}

    def __call__(
        self,
        strike: Any = None,
        each_batch: Callable[[Loop, int, int], None] = nothing,
        progress: Progress | None = None,
    ) -> set[Stop]:
        self.room = Room(3)
        self.hosts = [
            self.kit.Host(
                self.driver if rank == 0 else None, strike or self.kit.Interruption("none", 0)
            )
            for rank in range(3)
        ]
        with ThreadPoolExecutor(3) as pool:
            self.loops = list(
                pool.map(lambda rank: self._rank(rank, each_batch, progress), range(3))
            )
        return {loop.stop for loop in self.loops}

    def _rank(
        self, rank: int, each_batch: Callable[[Loop, int, int], None], progress: Progress | None
    ) -> RunLoop:
        context = DistributedContext.from_backend(Threads(self.room, rank))
        adapter = self.adapters[rank] = Counter(context, each_batch)

        def save(state: Progress) -> bool:
            context.barrier()
            adapter.save(Path())
            if rank == 0:
                self.saved.append(state)
            return True

        writer = self.writer[rank]
        loop = RunLoop(
            adapter, self.schedule, self.hosts[rank], context, save, progress, writer=writer
        )
        if not loop.begin():
            adapter.train(loop)
        return loop


@pytest.fixture
def together(kit: Any) -> Callable[..., Together]:
    return lambda rungs, schedule: Together(kit, kit.Driver(rungs), schedule)


def test_the_chief_alone_speaks_and_every_rank_hears(together: Any) -> None:
    run = together([4, 7], Schedule(report=Every(3), policy="none"))
    assert run() == {Stop.COMPLETED}
    assert run.driver.order == [
        ("training", at) if what == "t" else ("validation", at)
        for what, at in (("t", 3), ("t", 4), ("v", 4), ("t", 6), ("t", 7), ("v", 7))
    ]
    assert run.driver.rows["training", 3]["loss"] == 1.0
    assert run.driver.rows["validation", 7]["val_loss"] == 3.0
    assert [state.batches for state in run.saved] == [4, 7]


def test_a_preemption_of_the_chief_stops_every_rank_at_one_batch(together: Any) -> None:
    """Well before the next report, and each refuses to go on."""
    run = together([10_000], Schedule(report=Every(10_000)))

    def preempt(loop: Loop, rank: int, batch: int) -> None:
        time.sleep(0.002)
        if rank == 0 and batch == 20:
            run.hosts[0].preempted.raised = True

    assert run(each_batch=preempt) == {Stop.PREEMPTED}
    stopped_at = {loop.progress.batches for loop in run.loops}
    assert len(stopped_at) == 1
    assert 20 < stopped_at.pop() < 2000
    for loop in run.loops:
        assert loop.remaining == 0
        with pytest.raises(LoopError, match="after the loop had preempted"):
            loop.step({"loss": 0.0})


def test_any_rank_may_ask_for_the_end(together: Any) -> None:
    run = together([10_000], Schedule(report=Every(50)))

    def ask(loop: Loop, rank: int, batch: int) -> None:
        if rank == 2 and batch == 7:
            loop.request_stop()

    assert run(each_batch=ask) == {Stop.USER_STOPPED}
    assert len({loop.progress.batches for loop in run.loops}) == 1
    assert run.loops[0].progress.batches <= 50


@pytest.mark.parametrize("word", range(1, 9))
def test_all_ranks_stop_when_the_chief_loses_its_driver(kit: Any, together: Any, word: int) -> None:
    schedule = Schedule(report=Every(2), validate=Every(3), validate_first=True, policy="none")
    whole = together([6], schedule)
    whole()
    run = together([6], schedule)
    assert run(kit.Interruption("lose", word, False, False)) == {Stop.PREEMPTED}
    assert len({loop.progress.batches for loop in run.loops}) == 1
    assert run(progress=run.saved[-1]) == {Stop.COMPLETED}
    assert run.driver.history() == whole.driver.history()


def test_unreduced_state_is_synced_before_validation_and_save(together: Any) -> None:
    run = together([5], Schedule(validate=Every(2), checkpoint=Every(3), policy="none"))
    run()
    first, *others = run.adapters.values()
    assert [adapter.validated_with for adapter in others] == [first.validated_with] * 2
    assert [adapter.saved_with for adapter in others] == [first.saved_with] * 2
    assert len(first.saved_with) == 2


def test_differing_weights_are_not_saved_and_the_rank_is_named(together: Any) -> None:
    run = together([6], Schedule(checkpoint=Every(4), policy="none"))

    def unreduced(loop: Loop, rank: int, batch: int) -> None:
        run.adapters[rank].weight += 0.5 if rank else 0.25

    with pytest.raises(
        TrialError,
        match="at batch 4 the weights of rank 1 differ from those of rank 0; step the optimizer",
    ):
        run(each_batch=unreduced)
    assert run.saved == []


def test_ranks_meet_about_once_a_second(together: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of batches that take 10 ms each, by a clock of the test's own.

    Reports between do not spoil the measure.
    """
    clock = threading.local()
    monkeypatch.setattr(
        "det_core.train.loop.time", SimpleNamespace(monotonic=lambda: getattr(clock, "now", 0.0))
    )
    spacings: list[int] = []

    def tick(loop: Loop, rank: int, batch: int) -> None:
        clock.now = getattr(clock, "now", 0.0) + 0.01
        if rank == 0:
            spacings.append(loop._sync_at - loop._synced)

    run = together([1000], Schedule(report=Every(70)))
    assert run(each_batch=tick) == {Stop.COMPLETED}
    assert spacings[0] == 1
    assert all(spacing in range(95, 106) for spacing in spacings[1:])


def test_ranks_sync_at_least_every_ten_thousand_batches(
    together: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that stands still, as it does for batches that take no time to speak of."""
    monkeypatch.setattr("det_core.train.loop.time", SimpleNamespace(monotonic=lambda: 0.0))
    ahead: list[int] = []

    def look(loop: Loop, rank: int, batch: int) -> None:
        if rank == 0:
            ahead.append(loop._sync_at - batch)

    run = together([12_000], Schedule(report=Every(0)))
    assert run(each_batch=look) == {Stop.COMPLETED}
    assert ahead[0] == 1
    assert max(ahead) == 10_000


def test_ranks_with_slow_batches_sync_after_each(
    together: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = threading.local()
    monkeypatch.setattr(
        "det_core.train.loop.time", SimpleNamespace(monotonic=lambda: getattr(clock, "now", 0.0))
    )

    def tick(loop: Loop, rank: int, batch: int) -> None:
        clock.now = getattr(clock, "now", 0.0) + 5.0
        assert loop.remaining == 1

    assert together([5], Schedule(report=Every(0)))(each_batch=tick) == {Stop.COMPLETED}


def test_a_checkpoint_holds_that_any_rank_has_asked_for_the_end(together: Any) -> None:
    run = together([10_000], Schedule(report=Every(0), checkpoint=Every(8), policy="none"))

    def ask(loop: Loop, rank: int, batch: int) -> None:
        if rank == 2 and batch == 7:
            loop.request_stop()

    assert run(each_batch=ask) == {Stop.USER_STOPPED}
    assert [state.asked for state in run.saved] == [True, True]


def test_keep_on_one_of_several_ranks_saves_nothing(together: Any) -> None:
    run = together([4], Schedule(policy="none"))

    def keep(loop: Loop, rank: int, batch: int) -> None:
        if rank == 0 and batch == 2:
            loop.save_after_error()

    assert run(each_batch=keep) == {Stop.COMPLETED}
    assert [state.batches for state in run.saved] == [4]


class Scribe:
    """Writes beside training; the chief's has ended when it is looked at for the fifth time."""

    def __init__(self, rank: int) -> None:
        self.rank, self.writes, self.looks = rank, False, 0
        self.settled: list[int] = []

    def begin(self, progress: Progress) -> bool:
        self.writes = True
        return True

    @property
    def ended(self) -> bool:
        self.looks += 1
        return self.writes and self.rank == 0 and self.looks >= 5

    def finish(self) -> bool:
        if self.writes:
            self.writes = False
            self.settled.append(self.looks)
        return True


def test_all_ranks_learn_together_that_a_checkpoint_is_written(together: Any) -> None:
    run = together([8], Schedule(report=Every(1), checkpoint=At({2}), policy="none"))
    run.writer = [Scribe(rank) for rank in range(3)]
    assert run() == {Stop.COMPLETED}
    assert [scribe.settled for scribe in run.writer] == [[5], [5], [5]]
