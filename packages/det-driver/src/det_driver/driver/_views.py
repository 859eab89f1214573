"""What observers are given of an experiment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from det_core.config import ExperimentConfig

from ._rungs import Rung


@dataclass(frozen=True, kw_only=True)
class SearchView:
    """Where a search stands: how much is done (0 to 1), its trials counted, its rungs from the lowest."""

    progress: float
    trials: int
    running: int
    queued: int
    ended: int
    rungs: tuple[Rung, ...]

    @property
    def waiting(self) -> int:
        """How many trials wait for their searcher."""
        return self.trials - self.running - self.queued - self.ended


@dataclass(frozen=True, kw_only=True)
class ExperimentView:
    """An experiment as observers see it; `search()` counts its trials, and is to be called in a hook only."""

    id: int
    name: str
    config: ExperimentConfig
    directory: Path
    tensorboard_dir: Path
    search: Callable[[], SearchView]
