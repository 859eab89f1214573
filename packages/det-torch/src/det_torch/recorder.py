"""The host of a run of `Trainer.fit`. It stores reports and prints a line for each."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from det_core import Flag, Outcome, Target, TrialHost
from det_core.checkpoint import Manifest
from det_core.train.metrics import brief
from det_core.train.tensorboard import EventFile

from .history import History
from .result import SavedCheckpoint


class Alone(TrialHost):
    """The host of a run without a driver.

    Its target is the length that the user gave. `Recorder` knows the best validation.
    """

    def __init__(self, batches: int) -> None:
        self.preempted = Flag()
        self._batches = batches

    def target(self) -> Target:
        return Target(n=self._batches)

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        return self.target()

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        pass

    def checkpointed(self, manifest: Manifest, storage: str) -> None:
        pass

    def progress(self, fraction: float) -> None:
        pass

    def status(self, text: str) -> None:
        pass

    def finished(self, outcome: Outcome, message: str = "") -> None:
        pass


class Recorder(TrialHost):
    """Records what it passes on to another host.

    `length` is the length of the training in batches, if known, and is printed.
    """

    def __init__(
        self, host: TrialHost, history: History, events: EventFile, length: int | None, done: int
    ) -> None:
        self.preempted = host.preempted
        self._events = events
        self._host, self._history, self._length = host, history, length
        self._decides = isinstance(host, Alone)
        self._timed, self._time = done, time.monotonic()
        self.batches = done

    def target(self) -> Target:
        return self._host.target()

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self.batches = max(self.batches, batches)
        if self._history.add(group, batches, metrics):
            self._events.add(group, batches, metrics)
            if group == "training":
                self._print(f"{self._at(batches)}  {shown(metrics)}{self._speed(batches)}")
        self._host.report(group, batches, metrics)

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        if self._history.add("validation", batches, metrics):
            self._events.add("validation", batches, metrics)
            self._print(f"{self._at(batches)}  validation: {shown(metrics)}")
        best = self._history.judge(batches, metrics)
        target = self._host.validated(batches, metrics, length)
        self._timed, self._time = batches, time.monotonic()
        return Target(n=target.n, unit=target.unit, best=best) if self._decides else target

    def checkpointed(self, manifest: Manifest, storage: str) -> None:
        saved = SavedCheckpoint(manifest.uuid, manifest.batches, storage)
        self._history.keep(saved)
        self._print(f"{self._at(saved.batches)}  checkpoint: {short(storage)}")
        self._host.checkpointed(manifest, storage)

    def progress(self, fraction: float) -> None:
        self._host.progress(fraction)

    def status(self, text: str) -> None:
        self._host.status(text)

    def notice(self, text: str) -> None:
        if self._decides:
            self._print(f"notice: {text}")
        self._host.notice(text)

    def finished(self, outcome: Outcome, message: str = "") -> None:
        self._host.finished(outcome, message)

    def best_validation(self) -> float | None:
        return self._history.best_value if self._decides else self._host.best_validation()

    def say(self, text: str) -> None:
        """Print a line."""
        self._print(text)

    def _at(self, batches: int) -> str:
        return f"batch {batches}/{self._length}" if self._length else f"batch {batches}"

    def _speed(self, batches: int) -> str:
        now = time.monotonic()
        count, seconds = batches - self._timed, now - self._time
        self._timed, self._time = batches, now
        return f"  ({count / seconds:.4g} batches/s)" if count > 0 and seconds > 0 else ""

    def _print(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def shown(metrics: Mapping[str, Any]) -> str:
    """Return metrics as text for a person, without the position, which the line shows already."""
    named = [(name, value) for name, value in metrics.items() if name not in ("batches", "epochs")]
    return "  ".join(
        f"{n} {v:.5g}" if isinstance(v, float) else f"{n} {brief(v)}" for n, v in named
    )


def short(place: str) -> str:
    """Return a path relative to the working directory if it lies below it.

    A URL is returned unchanged.
    """
    if "://" in place:
        return place
    path, here = Path(place), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else place
