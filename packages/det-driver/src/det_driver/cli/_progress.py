"""What is known of an experiment while it runs, gathered from what the driver tells its observers."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from det_core.hookspecs import hookimpl

from ..client import Space
from ..store import TrialRow
from ._console import clock, shown

_RECENT = 20
_SHARE = 0.05
"""The part of the driver's time that counting its trials may take: it is the trials'."""


@dataclass
class Pace:
    """How fast something grows, by its latest values."""

    start: tuple[float, float] | None = None
    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, now: float, value: float) -> None:
        if self.points and value <= self.points[-1][1]:
            return
        if not self.points and self.start is not None:
            self.points.append(self.start)  # until the second value: what comes before the first is mostly imports
        elif self.start is not None:
            self.points.popleft()
            self.start = None
        self.points.append((now, value))

    @property
    def per_second(self) -> float:
        """Zero as long as that is not known."""
        if len(self.points) < 2:
            return 0.0
        (first, low), (last, high) = self.points[0], self.points[-1]
        return (high - low) / (last - first) if last > first else 0.0

    def until(self, goal: float, now: float) -> float | None:
        """Return how many seconds are left until it reaches the goal; None where that is not known."""
        if not self.per_second:
            return None
        last, value = self.points[-1]
        return max(0.0, (goal - value) / self.per_second - (now - last))


@dataclass
class TrialProgress:
    """One trial: where it is, and how fast. `chosen` are its hyperparameters that others do not share."""

    id: int
    chosen: dict[str, Any]
    state: str = "queued"
    batches: int = 0
    done: float = 0.0
    best: float | None = None
    trained: Pace = field(default_factory=Pace)
    progressed: Pace = field(default_factory=Pace)

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def speed(self) -> float:
        """Batches in a second; zero where it is not known, or does not run."""
        return self.trained.per_second if self.running else 0.0

    def left(self, now: float) -> float | None:
        """Seconds until it has trained as long as is asked of it by now."""
        return self.progressed.until(1.0, now) if self.running else None


class Silent:
    """Shows nothing; it is entered before the first event and left after the last."""

    def __enter__(self) -> None:
        """Begin to show."""

    def __exit__(self, *ignored: object) -> None:
        """Leave the last state standing."""


class SearchProgress(Silent):
    """Gathers, for views that derive from it and show it.

    Trials that have long ended and do not lead are forgotten, so that it costs the same for any number of them. `earlier` are
    those that lead when a driver goes on with the experiment.
    """

    LEADERS = 5

    def __init__(self, earlier: Iterable[TrialRow] = ()) -> None:
        self.title = self.metric = self.unit = ""
        self.sign = 1.0
        self.state = "starts"
        self.single = True
        self.waits = ""
        self.search: Any = None
        self.rows: dict[int, TrialProgress] = {}
        self.best: tuple[float, int, int, dict[str, Any]] | None = None  # value, trial, batches, what was chosen
        self.happened: deque[tuple[float, list[str]]] = deque(maxlen=3)  # when, and what in parts
        self.began = time.monotonic()
        self._earlier = list(earlier)
        self._ended: deque[int] = deque(maxlen=3)
        self._overall = Pace()
        self._space = Space({})
        self._next_look = -math.inf

    # What the driver tells

    @hookimpl
    def det_experiment_started(self, experiment: Any) -> None:
        self.title = f"experiment {experiment.id} ({experiment.name})"
        self.state = "running"
        self._space = Space(experiment.config.hyperparameters)
        searcher = experiment.config.searcher
        if searcher is not None:
            self.single = searcher.name == "single"
            self.metric = searcher.metric or ""
            self.sign = 1.0 if searcher.smaller_is_better else -1.0
        for trial in self._earlier:
            self._row(trial).state = str(trial.state).lower()
            self._note_best(trial, trial.best_batches or 0)
        self._look(experiment, now=True)

    @hookimpl
    def det_trials_waiting(self, experiment: Any, why: str) -> None:
        self.waits = why
        self._look(experiment, now=True)

    @hookimpl
    def det_run_started(self, experiment: Any, trial: Any, run: Any) -> None:
        self.waits = ""
        row = self._row(trial)
        row.state, row.batches = "running", run.first_batch
        now = time.monotonic()
        row.trained, row.progressed = Pace((now, run.first_batch)), Pace((now, trial.progress))
        again = [f"run {run.number}", f"from batch {run.first_batch}"] if run.number > 1 else []
        self._happens([f"trial {trial.id} starts", *again])
        self._look(experiment)

    @hookimpl
    def det_metrics_reported(
        self, experiment: Any, trial: Any, group: str, batches: int, metrics: Mapping[str, Any]
    ) -> None:
        row = self._row(trial)
        row.batches = max(row.batches, batches)
        row.trained.add(time.monotonic(), batches)
        row.progressed.add(time.monotonic(), trial.progress)
        self._note_best(trial, batches)
        self._happens([f"trial {trial.id}", f"batch {batches}", group, *numbers(metrics)])
        self._look(experiment)

    @hookimpl
    def det_checkpoint_saved(self, trial: Any, checkpoint: Any) -> None:
        self._happens([f"trial {trial.id}", f"batch {checkpoint.batches}", "checkpoint"])

    @hookimpl
    def det_run_finished(self, experiment: Any, trial: Any, run: Any, outcome: str) -> None:
        row = self._row(trial)
        row.state = str(trial.state).lower()
        self._happens([f"trial {trial.id} {row.state}", *([run.reason] if run.reason else [])])
        self._ended.append(trial.id)
        kept = {each.id for each in self.leaders()}.union(self._ended)
        self.rows = {id: each for id, each in self.rows.items() if each.running or id in kept}
        self._look(experiment)

    @hookimpl
    def det_experiment_finished(self, experiment: Any, state: str) -> None:
        self.state, self.waits = state.lower(), ""
        self._look(experiment, now=True)

    # What is made of it; from any thread

    def leaders(self) -> list[TrialProgress]:
        """The best trials, the best one first."""
        measured = [row for row in list(self.rows.values()) if row.best is not None]
        return sorted(measured, key=lambda row: (self.sign * (row.best or 0.0), row.id))[: self.LEADERS]

    @property
    def done(self) -> float:
        """How much of the search is done, 0 to 1."""
        return self.search.progress if self.search is not None else 0.0

    @property
    def speed(self) -> float:
        """Batches in a second, of all running trials together."""
        return sum(row.speed for row in list(self.rows.values()))

    def left(self, now: float) -> float | None:
        """Seconds until all is done, as far as one can tell by now."""
        if self.state != "running":
            return None
        running = [row for row in list(self.rows.values()) if row.running]
        alone = running[0].left(now) if self.single and len(running) == 1 else None
        return alone if alone is not None else self._overall.until(1.0, now)

    def counts(self) -> dict[str, int]:
        """How many trials are in which state, as far as there are any; those that run are those of the rows."""
        if self.search is None:
            return {}
        running = sum(row.running for row in list(self.rows.values()))
        rest = {"queued": self.search.queued, "waiting": self.search.waiting, "ended": self.search.ended}
        return {name: count for name, count in ({"running": running} | rest).items() if count}

    def settled(self, row: TrialProgress) -> str:
        """The state of a trial; what happens to one that does not run is known to the search only."""
        if row.running or self.search is None:
            return row.state
        if row.id in self.search.resting:
            return self.search.resting[row.id] if self.state == "running" else self.state
        return "completed" if row.state in ("waiting", "queued", "paused") else row.state

    def status(self, now: float) -> str:
        """Say in a line how far it is."""
        left = clock(self.left(now))
        parts = [f"{self.done:.0%} after {clock(now - self.began)}", f"{left} left" if left else ""]
        parts += [f"{count} {name}" for name, count in ({} if self.single else self.counts()).items()]
        parts += [f"best {self.metric} {shown(self.best[0])} (trial {self.best[1]})" if self.best else ""]
        return ", ".join(part for part in parts if part)

    def _row(self, trial: Any) -> TrialProgress:
        row = self.rows.setdefault(trial.id, TrialProgress(trial.id, self._space.chosen(trial.hparams)))
        row.best, row.done, row.batches = trial.best_metric, trial.progress, max(row.batches, trial.batches)
        return row

    def _note_best(self, trial: Any, batches: int) -> None:
        value = trial.best_metric
        if value is not None and (self.best is None or self.sign * value < self.sign * self.best[0]):
            self.best = (value, trial.id, batches, self._space.chosen(trial.hparams))

    def _happens(self, parts: list[str]) -> None:
        self.happened.append((time.monotonic() - self.began, parts))

    def _look(self, experiment: Any, now: bool = False) -> None:
        """Count the trials, as often as that costs next to nothing."""
        before = time.monotonic()
        if now or before >= self._next_look:
            self.search = experiment.search()
            after = time.monotonic()
            self._overall.add(after, self.search.progress)
            self._next_look = after + (after - before) / _SHARE


def numbers(metrics: Mapping[str, Any]) -> list[str]:
    """Return reported metrics as text, without the counters that come with all of them."""
    return [f"{name}={shown(value)}" for name, value in metrics.items() if name not in ("batches", "epochs")]
