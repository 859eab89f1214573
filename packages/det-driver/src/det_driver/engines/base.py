"""What an engine is: it starts a run's process, tells when it ends, and can end it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run, ready to be started.

    `entrypoint` is `module:Class` for a trial class, a shell line, or an argv. `variables` are added to the environment.
    `ranks` holds, for each process, what its environment has beside that. The output of the process k goes to
    `log_dir/rank-k.log`. `warm` names the frameworks that the code imports, where the run may be a fork of a
    process that has imported them; None where it has to be a new interpreter. `hosts` names the machines of the ranks, as
    `det launch --hosts` takes them, and `agent` the command that reaches them; none means this machine.
    """

    run_id: int
    entrypoint: str | tuple[str, ...]
    trial_class: bool
    code_dir: Path
    log_dir: Path
    variables: Mapping[str, str]
    ranks: tuple[Mapping[str, str], ...] = ({},)
    warm: tuple[str, ...] | None = None
    hosts: str = ""
    agent: str = ""


class Ended(Protocol):
    """Told once of each run, from any thread, when all of its processes have ended.

    `status` is that of the process that failed first, whose `rank` is given, or 0; a signal is a negative status. `unstarted`
    says why none of them could be started, where the machine may be able to later: the run is tried again.
    """

    def __call__(self, run_id: int, status: int, rank: int = 0, unstarted: str = "") -> None: ...


class Engine(ABC):
    """Starts runs, and tells `ended` of their ends."""

    def __init__(self, ended: Ended) -> None:
        self.ended = ended

    @abstractmethod
    def start(self, spec: RunSpec) -> None:
        """Start a run's processes; OSError where the machine cannot, which is tried again where it is only out of something."""

    @abstractmethod
    def terminate(self, run_id: int) -> None:
        """Ask the processes to end; harmless when they have."""

    @abstractmethod
    def kill(self, run_id: int) -> None:
        """End the processes and all that they started, at once; harmless when they have ended."""

    def close(self) -> None:
        """Release what the engine holds; every run has ended."""
