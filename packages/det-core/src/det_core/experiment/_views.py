"""What observers are given of an experiment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config import ExperimentConfig


@dataclass(frozen=True, kw_only=True)
class ExperimentView:
    """An experiment as observers see it."""

    id: int
    name: str
    config: ExperimentConfig
    directory: Path
    tensorboard_dir: Path
