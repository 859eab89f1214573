"""What is seen while an experiment runs: a table in a terminal, lines elsewhere. Observers like a stranger's."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from det_core.hookspecs import hookimpl

from ._console import shown

LOOK_SECONDS = 0.5
MOST_RUNGS = 8


def view(silent: bool) -> Silent:
    """Return the view that suits where the output goes."""
    if silent:
        return Silent()
    return Live() if sys.stdout.isatty() else LineView()


class Silent(nullcontext[None]):
    """Shows nothing; it is entered before the first event and left after the last."""


class LineView(Silent):
    """Prints a line for each thing that happens: for logs and pipes."""

    @hookimpl
    def det_experiment_started(self, experiment: Any) -> None:
        _print(f"experiment {experiment.id} ({experiment.name})")

    @hookimpl
    def det_run_started(self, trial: Any, run: Any) -> None:
        again = f", run {run.number} from batch {run.first_batch}" if run.number > 1 else ""
        _print(f"trial {trial.id} starts{again}: {shown(trial.hparams)}")

    @hookimpl
    def det_metrics_reported(self, trial: Any, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        _print(f"trial {trial.id} batch {batches} {group}: {numbers(metrics)}")

    @hookimpl
    def det_checkpoint_saved(self, trial: Any, checkpoint: Any) -> None:
        _print(f"trial {trial.id} batch {checkpoint.batches} checkpoint {checkpoint.uuid}")

    @hookimpl
    def det_run_finished(self, trial: Any, outcome: str) -> None:
        _print(f"trial {trial.id} {outcome}")


class Live(Silent):
    """The search as it goes on, redrawn in place: the leaders, the running trials, the rungs, the time that is left.

    Trials that have ended and do not lead are forgotten, so that it costs the same for any number of them.
    """

    LEADERS = 5
    RUNNING = 10

    def __init__(self) -> None:
        from rich.live import Live as Screen

        self._title = ""
        self._metric = ""
        self._sign = 1.0
        self._started = time.monotonic()
        self._from: float | None = None  # the progress that an earlier driver had made
        self._looked = -math.inf
        self._search: Any = None
        self._rows: dict[int, dict[str, Any]] = {}
        self._screen = Screen(get_renderable=self._drawn, refresh_per_second=4, transient=False)

    def __enter__(self) -> None:
        self._screen.start()

    def __exit__(self, *ignored: object) -> None:
        self._screen.refresh()
        self._screen.stop()

    @hookimpl
    def det_experiment_started(self, experiment: Any) -> None:
        self._title = f"experiment {experiment.id} ({experiment.name})"
        searcher = experiment.config.searcher
        if searcher is not None:
            self._metric = searcher.metric or ""
            self._sign = 1.0 if searcher.smaller_is_better else -1.0
        self._look(experiment, now=True)
        self._from = self._search.progress

    @hookimpl
    def det_run_started(self, experiment: Any, trial: Any, run: Any) -> None:
        now, done = time.monotonic(), trial.progress
        self._row(trial).update({"state": "running", "batches": run.first_batch, "since": now, "from": done})
        self._look(experiment)

    @hookimpl
    def det_metrics_reported(
        self, experiment: Any, trial: Any, group: str, batches: int, metrics: Mapping[str, Any]
    ) -> None:
        self._row(trial).update({"batches": batches, group: numbers(metrics)})
        self._look(experiment)

    @hookimpl
    def det_run_finished(self, experiment: Any, trial: Any, outcome: str) -> None:
        self._row(trial)["state"] = str(trial.state).lower()
        leaders = self._leaders()
        self._rows = {id: r for id, r in self._rows.items() if r.get("state") == "running" or id in leaders}
        self._look(experiment)

    @hookimpl
    def det_experiment_finished(self, experiment: Any, state: str) -> None:
        for row in self._rows.values():
            if row.get("state") == "waiting":  # its searcher wanted no more of it
                row["state"] = state.lower()
        self._look(experiment, now=True)

    def _row(self, trial: Any) -> dict[str, Any]:
        row = self._rows.setdefault(trial.id, {"hparams": trial.hparams})
        row.update(best=trial.best_metric, progress=trial.progress)
        return row

    def _look(self, experiment: Any, now: bool = False) -> None:
        """Count the trials, now and then: the driver's time is the trials'."""
        if now or time.monotonic() - self._looked > LOOK_SECONDS:
            self._search = experiment.search()
            self._looked = time.monotonic()

    def _leaders(self) -> list[int]:
        ranked = sorted(
            (self._sign * row["best"], id) for id, row in list(self._rows.items()) if row.get("best") is not None
        )
        return [id for _, id in ranked[: self.LEADERS]]

    # Drawing, in the screen's own thread

    def _drawn(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        return Group(Text(self._heading(), "bold"), self._table(), *map(Text, self._rungs()))

    def _table(self) -> Any:
        """The leaders with their places, then the running trials, the newest first."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in ("", "trial", "state", "batch", "done", "left", f"best {self._metric}".strip(), "newest", "with"):
            table.add_column(column, overflow="ellipsis", no_wrap=True)
        rows, leaders = dict(self._rows), self._leaders()
        running = (id for id, row in rows.items() if row.get("state") == "running" and id not in leaders)
        for id in [*leaders, *sorted(running, reverse=True)[: self.RUNNING]]:
            row = rows[id]
            place = str(leaders.index(id) + 1) if id in leaders else ""
            newest = row.get("validation") or row.get("training") or ""
            done = f"{row.get('progress') or 0.0:.0%}"
            cells = [place, str(id), row.get("state", ""), str(row.get("batches", "")), done, self._left(row)]
            table.add_row(*(Text(cell) for cell in [*cells, shown(row.get("best")), newest, shown(row["hparams"])]))
        return table

    def _heading(self) -> str:
        passed = time.monotonic() - self._started
        search = self._search
        if search is None:
            return f"{self._title}  {_clock(passed)}"
        counts = {"running": search.running, "queued": search.queued, "waiting": search.waiting, "ended": search.ended}
        listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        done, left = search.progress, ""
        if (made := done - (self._from or 0.0)) > 0.0 and done < 1.0:
            left = f", {_clock(passed / made * (1.0 - done))} left"
        return f"{self._title}  {done:.0%}  {_clock(passed)}{left}  trials: {listed or 'none'}"

    def _rungs(self) -> list[str]:
        """Say how many trials have reached each length, where there are several, and how many are on the way."""
        rungs = self._search.rungs if self._search is not None else ()
        parts = [f"{r.length}: {r.reached}{f' (+{r.under_way})' if r.under_way else ''}" for r in rungs[-MOST_RUNGS:]]
        return ["trials by length: " + "   ".join(parts)] if len(rungs) > 1 else []

    def _left(self, row: dict[str, Any]) -> str:
        done = (row.get("progress") or 0.0) - (row.get("from") or 0.0)
        if row.get("state") != "running" or done <= 0.0:
            return ""
        return _clock((time.monotonic() - row["since"]) / done * (1.0 - row["progress"]))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def numbers(metrics: Mapping[str, Any]) -> str:
    """Return reported metrics as text, without the counters that come with all of them."""
    return "  ".join(f"{name}={shown(value)}" for name, value in metrics.items() if name not in ("batches", "epochs"))


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
