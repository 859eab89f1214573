"""Whether the script should save and end."""

from __future__ import annotations

import enum

from ..distributed import DistributedContext
from ..host import Outcome, TrialHost


class PreemptMode(enum.Enum):
    """Who asks: all ranks together, of whom the chief asks (the default); the chief alone; or each for itself."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"
    WorkersAskMaster = "WORKERS_ASK_MASTER"


class PreemptContext:
    """Tells whether the experiment is paused, canceled, or the searcher stopped the trial."""

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
            answer = bool(self._distributed.broadcast(answer))
        if answer and auto_ack and rank == 0:
            self.acknowledge_preemption_signal()
        return answer

    def acknowledge_preemption_signal(self) -> None:
        """Say that the end that follows is a pause."""
        if not self._acknowledged and self._distributed.rank == 0:
            self._acknowledged = True
            self._host.finished(Outcome.PREEMPTED)
