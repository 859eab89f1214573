"""What an engine is: it starts a run's process, tells when it ends, and can end it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run, ready to be started.

    `entrypoint` is `module:Class` for a trial class, a shell line, or an argv. `variables` are added to the environment.
    Output goes to `log_dir/rank-0.log`. `warm` names the frameworks that the code imports, where the run may be a fork of a
    process that has imported them; None where it has to be a new interpreter.
    """

    run_id: int
    entrypoint: str | tuple[str, ...]
    trial_class: bool
    code_dir: Path
    log_dir: Path
    variables: Mapping[str, str]
    warm: tuple[str, ...] | None = None


Ended = Callable[[int, int], None]


class Engine(ABC):
    """Starts runs. `ended(run_id, status)` is called once for each, from any thread; a signal is a negative status."""

    def __init__(self, ended: Ended) -> None:
        self.ended = ended

    @abstractmethod
    def start(self, spec: RunSpec) -> None:
        """Start a run's process."""

    @abstractmethod
    def terminate(self, run_id: int) -> None:
        """Ask the process to end; harmless when it has."""

    @abstractmethod
    def kill(self, run_id: int) -> None:
        """End the process and all that it started, at once; harmless when it has ended."""

    def close(self) -> None:
        """Release what the engine holds; every run has ended."""
