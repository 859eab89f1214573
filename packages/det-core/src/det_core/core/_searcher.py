"""What the searcher asks of a script: to train to lengths, or to save and end."""

from __future__ import annotations

import enum
from collections.abc import Iterator

from ..distributed import DistributedContext
from ..host import Outcome, Target, TrialHost, told_to_all
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
    """Train until `length`, an absolute position in the configured unit, then report the searcher's metric."""

    def __init__(self, host: TrialHost, steps: Steps, metric: str, length: int, rank: int) -> None:
        self.length = length
        self._host, self._steps, self._metric, self._rank = host, steps, metric, rank
        self.completed = False

    def report_progress(self, length: float) -> None:
        """Report how far towards `length` the training is; rank 0 only."""
        must_be_chief(self._rank, "report progress")
        if not length >= 0:
            raise ValueError(f"the length trained is {length}; report a number that is not negative")
        self._host.progress(min(1.0, length / self.length) if self.length else 1.0)

    def report_completed(self, searcher_metric: float) -> None:
        """Report the searcher's metric at `length`, once; rank 0 only."""
        must_be_chief(self._rank, "complete an operation")
        if self.completed:
            raise RuntimeError("this operation is completed already; take the next from searcher.operations()")
        self.completed = True
        self._host.completed(self._steps.completed, {self._metric: searcher_metric}, self.length)


class SearcherContext:
    """Gives the operations of this trial's searcher, one after another."""

    def __init__(self, host: TrialHost, steps: Steps, distributed: DistributedContext, metric: str, unit: str) -> None:
        self._host, self._steps, self._distributed = host, steps, distributed
        self._metric, self._unit = metric, unit

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """Yield operations until the searcher has no more for now; complete each before taking the next."""
        rank = self._distributed.rank
        if searcher_mode is SearcherMode.ChiefOnly and rank != 0:
            raise RuntimeError(f"rank {rank} took operations in SearcherMode.ChiefOnly; let rank 0 tell the others")
        while (target := self._target(searcher_mode)).n is not None:
            operation = SearcherOperation(self._host, self._steps, self._metric, target.n, rank)
            yield operation
            if rank == 0 and not operation.completed:
                if self._host.preempted.raised:
                    return
                raise RuntimeError("you must call op.report_completed() on each operation before taking the next")

    def acknowledge_out_of_ops(self) -> None:
        """Do nothing: the end of `operations()` says it."""

    def get_configured_units(self) -> Unit:
        """Return the unit of `SearcherOperation.length`."""
        return Unit[self._unit.upper()]

    def _target(self, mode: SearcherMode) -> Target:
        target = self._host.target() if self._distributed.rank == 0 else None
        if mode is SearcherMode.WorkersAskChief:
            target = told_to_all(self._distributed.broadcast, target)
        assert target is not None
        return target


class PreemptMode(enum.Enum):
    """Who asks: all ranks together, for whom one of them may be asked to end (the default); the chief alone; or each for itself."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Tells whether the experiment is paused, canceled, the searcher stopped the trial, or SIGTERM asked for an end."""

    def __init__(self, host: TrialHost, distributed: DistributedContext, mode: PreemptMode) -> None:
        self._host, self._distributed, self._mode = host, distributed, mode
        self._acknowledged = False

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Return whether to save a checkpoint and end, soon.

        With `auto_ack` a True also acknowledges: when the script then ends with status 0, its trial counts as paused and
        not as complete. In WorkersAskChief mode every rank must call it, in ChiefOnly mode only rank 0 may.
        """
        rank = self._distributed.rank
        if self._mode is PreemptMode.ChiefOnly and rank != 0:
            raise RuntimeError(
                f"rank {rank} asked should_preempt() in PreemptMode.ChiefOnly; let rank 0 tell the others"
            )
        answer = self._host.preempted.raised
        if self._mode is PreemptMode.WorkersAskChief:
            answer = self._distributed.agree(answer)
        self._host.preempted.heeded = answer
        if answer and auto_ack and rank == 0:
            self.acknowledge_preemption_signal()
        return answer

    def acknowledge_preemption_signal(self) -> None:
        """Say that the end that follows is a pause."""
        if not self._acknowledged and self._distributed.rank == 0:
            self._acknowledged = True
            self._host.finished(Outcome.PREEMPTED)
