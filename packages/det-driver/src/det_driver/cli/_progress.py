"""Collects the progress of an experiment from the driver's hooks."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from det_core.hooks.hookspecs import hookimpl
from det_core.train.metrics import brief

from ..client import Space
from ..store import TrialRow, TrialState
from ._console import clock, share_done, shown
from ._output import printable

OUTCOMES = {
    "user_stopped": "stopped early, as its code asked",
    "invalid_hp": "declined its hyperparameters",
}
"""What is printed for a run's outcome where its name is not clear."""

_RECENT = 20
_LOOK_SECONDS = 0.1
_MOST_REPORTS = 100
"""The most reports in a second that are shown. Nobody reads more, and they would fill disks."""
_SHARE = 0.05
"""The share of the driver's time that counting its trials may take."""


def waiting_line(trial: Any) -> str:
    """Return what is printed for a run at whose end its trial waits for the searcher, else ""."""
    if str(trial.state) != TrialState.WAITING:
        return ""
    return f"trial {trial.id} reached batch {trial.batches} and waits for the searcher"


@dataclass
class Rate:
    """How fast a value grows, from its latest values."""

    start: tuple[float, float] | None = None
    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def add(self, now: float, value: float) -> None:
        if self.points and value <= self.points[-1][1]:
            return
        if not self.points and self.start is not None:
            # This point counts until the second value. The time before the first is mostly imports.
            self.points.append(self.start)
        elif self.start is not None:
            self.points.popleft()
            self.start = None
        self.points.append((now, value))

    @property
    def per_second(self) -> float:
        """The growth per second. Zero where it is unknown."""
        if len(self.points) < 2:
            return 0.0
        (first, low), (last, high) = self.points[0], self.points[-1]
        return (high - low) / (last - first) if last > first else 0.0

    def until(self, goal: float, now: float) -> float | None:
        """Return the seconds until the value reaches the goal. None where that is unknown, also
        where it was to be reached before `now`.
        """
        if not self.per_second:
            return None
        last, value = self.points[-1]
        left = (goal - value) / self.per_second - (now - last)
        return max(0.0, left) if left >= 0 or value >= goal else None


@dataclass
class TrialProgress:
    """The progress of one trial.

    - `chosen` are its hyperparameters that differ between trials.
    - `batches` are the furthest, and `first_batch` is where its run begins. A run that is started
      again repeats reports.
    - `reported` is the last reported batch of each group.
    - `started` is true when its run has begun to train and no longer imports a framework.
    """

    id: int
    chosen: dict[str, Any]
    state: str = "queued"
    batches: int = 0
    first_batch: int = 0
    done: float = 0.0
    best: float | None = None
    reported: dict[str, int] = field(default_factory=dict)
    trained: Rate = field(default_factory=Rate)
    progressed: Rate = field(default_factory=Rate)
    started: bool = False

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def speed(self) -> float:
        """Batches per second. Zero where it is unknown or the trial does not run."""
        return self.trained.per_second if self.running else 0.0

    def train_from(self, now: float, batches: int) -> None:
        """Measure the speed from now on."""
        self.trained = Rate((now, batches))
        self.progressed = Rate((now, self._share(batches)))

    def trains(self, now: float, batches: int) -> None:
        """Count the batches that its run has trained."""
        self.trained.add(now, batches)
        self.progressed.add(now, self._share(batches))

    def _share(self, batches: int) -> float:
        """Return the share of the trial that its run has done.

        It is less than the trial's own progress until the run has repeated what was lost.
        """
        return self.done * batches / self.batches if batches < self.batches else self.done

    def left(self, now: float) -> float | None:
        """Return the seconds until the trial reaches its target. None where that is unknown."""
        return self.progressed.until(1.0, now) if self.running else None


class Silent:
    """Shows nothing. It is entered before the first event and left after the last."""

    def __enter__(self) -> None:
        """Begin to show."""

    def __exit__(self, *ignored: object) -> None:
        """Leave the last state on the screen."""


class SearchProgress(Silent):
    """Collects progress, for views that derive from it and show it.

    Trials that ended long ago and do not lead are removed, so that the cost does not depend on
    their number. Of more than 100 reports in a second, only the batches of the others are noted.
    `earlier` are the leading trials of a resumed experiment.
    """

    LEADERS = 5

    def __init__(self, earlier: Iterable[TrialRow] = ()) -> None:
        self.title = self.metric = self.unit = ""
        self.sign = 1.0
        self.state = "starts"
        self.single = True
        self.waits = ""
        self.notices: tuple[str, ...] = ()
        self.search: Any = None
        self.rows: dict[int, TrialProgress] = {}
        # The value, the trial, the batches, and the chosen hyperparameters.
        self.best: tuple[float, int, int, dict[str, Any]] | None = None
        # The time, and the parts of the text.
        self.happened: deque[tuple[float, list[str]]] = deque(maxlen=3)
        self.began = time.monotonic()
        self._planned = 0
        self._earlier = list(earlier)
        self._ended: deque[int] = deque(maxlen=3)
        self._overall = Rate()
        self._space = Space({})
        self._next_look = -math.inf
        # The end of this second, and the reports that are still shown in it.
        self._second_ends, self._left = 0.0, 0

    # Hooks, which the driver calls.

    @hookimpl
    def det_experiment_started(self, experiment: Any) -> None:
        self.title = f"experiment {experiment.id} ({experiment.name})"
        self.state = "running"
        self._space = Space(experiment.config.hyperparameters)
        searcher = experiment.config.searcher
        if searcher is not None:
            self.single = searcher.name == "single"
            self._planned = getattr(searcher, "max_trials", None) or 0
            self.metric = searcher.metric or ""
            self.sign = 1.0 if searcher.smaller_is_better else -1.0
        for trial in self._earlier:
            self._row(trial).state = str(trial.state).lower()
            self._note_best(trial)
        self._look(experiment, now=True)

    @hookimpl
    def det_trials_waiting(self, experiment: Any, why: str) -> None:
        self.waits = why
        self._look(experiment, now=True)

    @hookimpl
    def det_run_started(self, experiment: Any, trial: Any, run: Any) -> None:
        self.waits = ""
        row = self._row(trial)
        row.state, row.batches = "running", max(row.batches, run.first_batch)
        row.first_batch, row.started = run.first_batch, False
        row.train_from(time.monotonic(), run.first_batch)
        again = [f"run {run.number}", f"from batch {run.first_batch}"] if run.number > 1 else []
        self._happens([f"trial {trial.id} starts", *again])
        self._look(experiment)

    @hookimpl
    def det_trial_status(self, experiment: Any, trial: Any, status: str) -> None:
        row = self._row(trial)
        if row.running and not row.started:
            row.started = True
            # The time before this was not training, so it is left out of the speed.
            row.train_from(time.monotonic(), row.first_batch)

    @hookimpl
    def det_metrics_reported(
        self, experiment: Any, trial_id: int, group: str, batches: int, metrics: Mapping[str, Any]
    ) -> None:
        now, row = time.monotonic(), self.rows.get(trial_id)
        # A run that is started again repeats reports. A trial that stops early validates its last
        # batch again, at the end of training.
        is_new = row is None or batches > row.reported.get(group, -1)
        if now >= self._second_ends:
            self._begin_second(experiment, now)
        self._left -= is_new
        shows = row is None or self._left >= 0
        if row is None or shows:
            trial = experiment.trial(trial_id)
            row = self._row(trial)
            self._note_best(trial)
        row.started = True
        row.reported[group] = max(row.reported.get(group, 0), batches)
        row.batches = max(row.batches, batches)
        if shows:
            row.trains(now, batches)
        if is_new:
            self._show_report(trial_id, group, batches, metrics)
        self._look(experiment)

    @hookimpl
    def det_trial_noticed(self, trial: Any, notice: str) -> None:
        self.notices = (*self.notices, f"trial {trial.id}: {notice}")

    @hookimpl
    def det_checkpoint_saved(self, trial: Any, checkpoint: Any) -> None:
        self._happens([f"trial {trial.id}", f"batch {checkpoint.batches}", "checkpoint"])

    @hookimpl
    def det_run_finished(self, experiment: Any, trial: Any, run: Any, outcome: str) -> None:
        row = self._row(trial)
        self._note_best(trial)
        row.state = str(trial.state).lower()
        ended = waiting_line(trial) or f"trial {trial.id} {OUTCOMES.get(outcome, row.state)}"
        self._happens([ended, *([run.reason] if run.reason else [])])
        self._ended.append(trial.id)
        kept = {each.id for each in self.leaders()}.union(self._ended)
        self.rows = {id: each for id, each in self.rows.items() if each.running or id in kept}
        self._look(experiment)

    @hookimpl
    def det_experiment_finished(self, experiment: Any, state: str) -> None:
        self._end(state.lower())
        self._look(experiment, now=True)

    def _end(self, state: str) -> None:
        """Set the state, also of all running trials."""
        self.state, self.waits = state, ""
        for row in self.rows.values():
            if row.running:
                row.state = state

    # Values for the views, which any thread may read.

    def leaders(self) -> list[TrialProgress]:
        """Return the best trials, the best one first."""
        measured = [row for row in list(self.rows.values()) if row.best is not None]
        return sorted(measured, key=lambda row: (self.sign * (row.best or 0.0), row.id))[
            : self.LEADERS
        ]

    @property
    def done(self) -> float:
        """The share of the search that is done, 0 to 1."""
        return self.search.progress if self.search is not None else 0.0

    @property
    def speed(self) -> float:
        """Batches per second of all running trials together."""
        return sum(row.speed for row in list(self.rows.values()))

    def left(self, now: float) -> float | None:
        """Return the estimated seconds until the search is done. None where that is unknown."""
        if self.state != "running":
            return None
        running = [row for row in list(self.rows.values()) if row.running]
        alone = running[0].left(now) if self.single and len(running) == 1 else None
        return alone if alone is not None else self._overall.until(1.0, now)

    def counts(self) -> dict[str, int]:
        """Return how many trials are in each state, without zeros.

        Those that run are the running rows.
        """
        if self.search is None:
            return {}
        rows = [row for row in list(self.rows.values()) if row.running]
        running = sum(row.started for row in rows)
        rest = {
            "queued": self.search.queued,
            "waiting": self.search.waiting,
            "ended": self.search.ended,
        }
        return {
            name: count
            for name, count in (
                {"running": running, "starting": len(rows) - running} | rest
            ).items()
            if count
        }

    @property
    def planned(self) -> int:
        """The number of trials of the whole search, as far as it is known."""
        return max(self._planned, self.search.trials if self.search is not None else 0)

    @property
    def starting(self) -> bool:
        """Whether runs have been started and none trains yet."""
        rows = [row for row in list(self.rows.values()) if row.running]
        return bool(rows) and not any(row.started for row in rows)

    def find_state(self, row: TrialProgress) -> str:
        """Return the state of a trial. The search knows it if the trial does not run."""
        if row.running:
            return row.state if row.started else "starting"
        if self.search is None:
            return row.state
        if row.id in self.search.resting:
            return self.search.resting[row.id] if self.state == "running" else self.state
        return "completed" if row.state in ("waiting", "queued", "paused") else row.state

    def counted(self) -> list[str]:
        """Return the number of trials in each state, the first one with the total."""
        counts = list(self.counts().items())
        of = [f" of {self.planned}" if i == 0 and self.planned else "" for i in range(len(counts))]
        return [f"{count}{all} {name}" for (name, count), all in zip(counts, of, strict=True)]

    def status(self, now: float) -> str:
        """Return the progress as one line."""
        left = clock(self.left(now))
        parts = [
            f"{share_done(self.done, self.state)} after {clock(now - self.began)}",
            f"{left} left" if left else "",
        ]
        parts += [] if self.single else self.counted()
        parts += [
            f"best {self.metric} {shown(self.best[0])} (trial {self.best[1]})" if self.best else ""
        ]
        return ", ".join(part for part in parts if part)

    def _row(self, trial: Any) -> TrialProgress:
        row = self.rows.get(trial.id)
        if row is None:
            chosen = self._space.chosen(trial.hparams)
            row = self.rows[trial.id] = TrialProgress(trial.id, chosen)
        row.best, row.done, row.batches = (
            trial.best_metric,
            trial.progress,
            max(row.batches, trial.batches),
        )
        return row

    def _note_best(self, trial: Any) -> None:
        """Note the trial where it leads.

        Its row may be later than the report that is shown.
        """
        value = trial.best_metric
        if value is not None and (
            self.best is None or self.sign * value < self.sign * self.best[0]
        ):
            self.best = (
                value,
                trial.id,
                trial.best_batches or 0,
                self._space.chosen(trial.hparams),
            )

    def _begin_second(self, experiment: Any, now: float) -> None:
        """Begin a second in which so many reports are shown."""
        self._second_ends, self._left = now + 1, _MOST_REPORTS

    def _show_report(
        self, trial_id: int, group: str, batches: int, metrics: Mapping[str, Any]
    ) -> None:
        """Show a report that is not a repetition, unless there are too many in this second."""
        if self._left >= 0:
            self._happens([f"trial {trial_id}", f"batch {batches}", group], metrics)

    def _happens(self, parts: list[str], metrics: Mapping[str, Any] | None = None) -> None:
        at = time.monotonic() - self.began
        self.happened.append((at, [*parts, *numbers(metrics or {})]))

    def _look(self, experiment: Any, now: bool = False) -> None:
        """Update the counts of the trials, not too often and using at most `_SHARE` of the time."""
        before = time.monotonic()
        if now or before >= self._next_look:
            self.search = experiment.search()
            after = time.monotonic()
            self._overall.add(after, self.search.progress)
            self._next_look = after + max((after - before) / _SHARE, _LOOK_SECONDS)


def numbers(metrics: Mapping[str, Any]) -> list[str]:
    """Return reported metrics as text, without the counters `batches` and `epochs`."""
    return [
        f"{printable(name)}={shown(brief(value))}"
        for name, value in metrics.items()
        if name not in ("batches", "epochs")
    ]
