"""The environment of an experiment on each machine: made before that has any run, so that no device waits for it."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from det_core.agent import Ended

from .base import Engine, Hears, Joined, Lost, Preparation, Site
from .probes import Probes

PREPARATIONS = 1 << 61
"""The number of the first run that makes an environment; runs of trials have lower ones, those of probes higher ones."""
_UNUSED_DAYS = 60


class Preparations:
    """Hears of machines first: a run on each makes the environment, unless it is there; then `hears` is told that there is one.

    `fit` are the machines that have it, `refused` says why it cannot be made on another.
    """

    def __init__(self, engine: Engine, preparation: Preparation, directory: Path, hears: Hears, *, here: bool) -> None:
        self._engine, self._preparation, self._hears, self._here = engine, preparation, hears, here
        self._directory = directory
        self._making: dict[int, str] = {}
        self._numbers = count(PREPARATIONS)
        self.fit: set[str] = set()
        self.refused = ""

    @property
    def awaited(self) -> str:
        """Where one is being made, and where it says how that goes; nothing where none is."""
        runs = sorted(self._making)
        return f"for the environment, which is made; its log: {self._log(runs[0])}" if runs else ""

    def hear(self, said: Any) -> None:
        """Take what is of preparations, and pass on the rest."""
        match said:
            case Joined(node, runs):
                others = tuple(run for run in runs if not PREPARATIONS <= run < 2 * PREPARATIONS)
                if others or (self._here and self._preparation.ready()):  # it was made before they began
                    self.fit.add(node)
                if node not in self.fit:
                    self._begin(node)
                    return
                said = Joined(node, others)
            case Lost(node):
                self.fit.discard(node)
                self._making = {run: on for run, on in self._making.items() if on != node}
            case Ended(run) if PREPARATIONS <= run < 2 * PREPARATIONS:
                self._engine.settled(run)
                node = self._making.pop(run, "")
                if not node:
                    return
                if said.unstarted:
                    self._begin(node)
                    return
                self._judge(run, node, said)
                said = Joined(node)
        self._hears(said)

    def _begin(self, node: str) -> None:
        if node in self._making.values():  # it has connected again
            return
        run = next(self._numbers)
        self._making[run] = node
        spec = self._preparation.spec
        if not self._here:  # nobody prunes there
            spec = msgspec.structs.replace(spec, entrypoint=f"{spec.entrypoint} {_UNUSED_DAYS}")
        try:
            self._engine.start(msgspec.structs.replace(spec, run_id=run, node=node, log_dir=self._log(run).parent))
        except OSError:  # the machine is gone, and is heard of again when it is back
            self._making.pop(run, None)

    def _log(self, run: int) -> Path:
        return self._directory / f"environment-{run - PREPARATIONS}-{os.getpid()}" / "rank-0.log"

    def _judge(self, run: int, node: str, ended: Ended) -> None:
        if not ended.status:
            self.fit.add(node)
            return
        log = self._log(run)
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        said = [line.removeprefix("det: ").strip() for line in lines if line.strip()]
        why = ended.unstartable or (said[-1] if said else f"status {ended.status}")
        self.refused = f"the environment cannot be made: {why} ({log} has all)"


class Readiness:
    """What each machine passes before its first run: the environment is made there, then the machine is tried.

    Where machines are `here`, there is nothing to be tried. `hear` is told of them first.
    """

    def __init__(self, engine: Engine, site: Site, *, here: bool) -> None:
        self.probes = Probes(engine, site.probe, site.directory) if site.probe and not here else None
        self.hear: Hears = self.probes.hear if self.probes else engine.hears
        self._preparations: Preparations | None = None
        if site.preparation:
            self._preparations = Preparations(engine, site.preparation, site.directory, self.hear, here=here)
            self.hear = self._preparations.hear

    def fits(self, node: str) -> bool:
        """Tell whether a machine may have runs."""
        return all(node in each.fit for each in (self._preparations, self.probes) if each)

    @property
    def refused(self) -> str:
        """What is wrong with a machine, if anything is."""
        return next((each.refused for each in (self._preparations, self.probes) if each and each.refused), "")

    def awaited(self) -> str:
        """Which preparation goes on."""
        return self._preparations.awaited if self._preparations else ""
