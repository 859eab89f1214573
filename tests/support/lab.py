"""Runs of trials in this process: the driver in memory, and what a run left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from det_core import Every, LocalHost, Schedule, Stop, Target

EACH_BATCH = Schedule(report=Every(1), policy="none")


class Host(LocalHost):
    """A driver in memory, which preempts when a report of `preempt_at` batches comes in."""

    def __init__(self, length: int, preempt_at: int | None) -> None:
        super().__init__(Target(n=length))
        self._preempt_at = preempt_at

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        super().report(group, batches, metrics)
        self.preempted.raised = self.preempted.raised or batches == self._preempt_at


@dataclass
class Ran:
    """What a run left behind."""

    stop: Stop
    host: Host

    @property
    def training(self) -> dict[int, dict[str, Any]]:
        return {
            batches: metrics for group, batches, metrics in self.host.history if group == "training"
        }

    @property
    def validation(self) -> dict[int, dict[str, Any]]:
        return {
            batches: metrics
            for group, batches, metrics in self.host.history
            if group == "validation"
        }

    @property
    def checkpoints(self) -> dict[int, str]:
        return {manifest.batches: manifest.uuid for manifest, _ in self.host.checkpoints}

    @property
    def losses(self) -> dict[int, float]:
        return {batches: metrics["loss"] for batches, metrics in self.training.items()}
