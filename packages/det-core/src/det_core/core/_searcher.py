"""What the searcher requires of a script: to train to given lengths, or to save and end."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from ..ranks.distributed import DistributedContext
from ..train import arguments as check
from ..train.host import Outcome, Target, TrialHost, broadcast_target
from ..train.metrics import number
from ._train import Steps, must_be_chief


class Unit(enum.Enum):
    """The unit of the searcher's lengths."""

    EPOCHS = "UNIT_EPOCHS"
    RECORDS = "UNIT_RECORDS"
    BATCHES = "UNIT_BATCHES"


class SearcherMode(enum.Enum):
    """Who iterates over operations: all ranks together (the default), or the chief alone."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class SearcherOperation:
    """Trains until `length`, an absolute position in the configured unit.

    Then the script reports the searcher's metric.
    """

    def __init__(self, host: TrialHost, steps: Steps, metric: str, length: int, rank: int) -> None:
        self.length = length
        self._host, self._steps, self._metric, self._rank = host, steps, metric, rank
        self.completed = False

    def report_progress(self, length: float) -> None:
        """Report how much of `length` is trained. For rank 0 only."""
        must_be_chief(self._rank, "report progress")
        length = check.real(
            "op.report_progress", "length", length, "a number that is not negative", 0.0
        )
        self._host.progress(min(1.0, length / self.length) if self.length else 1.0)

    def report_completed(self, searcher_metric: float) -> None:
        """Report the searcher's metric at `length`, once. For rank 0 only."""
        must_be_chief(self._rank, "complete an operation")
        if self.completed:
            raise RuntimeError(
                "this operation is completed already; take the next from searcher.operations()"
            )
        value = number(f"{self._metric} (op.report_completed)", searcher_metric)
        self.completed = True
        self._host.completed(self._steps.completed, {self._metric: value}, self.length)


class SearcherContext:
    """Yields the operations of this trial's searcher, one after another."""

    def __init__(
        self, host: TrialHost, steps: Steps, distributed: DistributedContext, metric: str, unit: str
    ) -> None:
        self._host, self._steps, self._distributed = host, steps, distributed
        self._metric, self._unit = metric, unit

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """Yield operations until the searcher has no more for now. Complete each before the next.

        `auto_ack` is accepted: the end of the loop acknowledges. Raises RuntimeError where rank 0
        takes the next operation and has not completed the one before.
        """
        rank = self._distributed.rank
        searcher_mode = check.member("operations", "searcher_mode", searcher_mode, SearcherMode)
        if searcher_mode is SearcherMode.ChiefOnly and rank != 0:
            raise RuntimeError(
                f"rank {rank} took operations in SearcherMode.ChiefOnly; let rank 0 tell the others"
            )
        self._steps.operations = True
        while (target := self._target(searcher_mode)).n is not None:
            operation = SearcherOperation(self._host, self._steps, self._metric, target.n, rank)
            yield operation
            if rank == 0 and not operation.completed:
                if self._host.preempted.raised:
                    return
                raise RuntimeError(
                    "you must call op.report_completed() on each operation before taking the next"
                )

    def acknowledge_out_of_ops(self) -> None:
        """Do nothing, as the end of `operations()` acknowledges."""

    def get_configured_units(self) -> Unit:
        """Return the unit of `SearcherOperation.length`."""
        return Unit[self._unit.upper()]

    def _target(self, mode: SearcherMode) -> Target:
        target = self._host.target() if self._distributed.rank == 0 else None
        if mode is SearcherMode.WorkersAskChief:
            target = broadcast_target(self._distributed.broadcast, target)
        assert target is not None
        return target


class PreemptMode(enum.Enum):
    """Which ranks call `should_preempt`.

    - `WorkersAskChief`: all ranks together. If one of them is to end, all are. This is the default.
    - `ChiefOnly`: the chief alone.
    - `WorkersAskMaster`: each rank for itself.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Tells a script whether it must save a checkpoint and end.

    This is so if the experiment is paused or canceled, if the searcher stopped the trial, or after
    SIGTERM.
    """

    def __init__(self, host: TrialHost, distributed: DistributedContext, mode: PreemptMode) -> None:
        self._host, self._distributed, self._mode = host, distributed, mode
        self._acknowledged = False

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether to save a checkpoint and end soon.

        With `auto_ack` a True also acknowledges: when the script then ends with status 0, its trial
        counts as paused and not as complete. In WorkersAskChief mode every rank must call it. In
        ChiefOnly mode only rank 0 may.
        """
        rank = self._distributed.rank
        if self._mode is PreemptMode.ChiefOnly and rank != 0:
            raise RuntimeError(
                f"rank {rank} asked should_preempt() in PreemptMode.ChiefOnly; let rank 0 tell the"
                " others"
            )
        preempted = self._host.preempted.raised
        if self._mode is PreemptMode.WorkersAskChief:
            preempted = self._distributed.agree(preempted)
        self._host.preempted.heeded = preempted
        if preempted and auto_ack and rank == 0:
            self.acknowledge_preemption_signal()
        return preempted

    def acknowledge_preemption_signal(self) -> None:
        """Report that the end that follows is a pause."""
        if not self._acknowledged and self._distributed.rank == 0:
            self._acknowledged = True
            self._host.finished(Outcome.PREEMPTED)
