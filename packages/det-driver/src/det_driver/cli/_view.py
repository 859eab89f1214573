"""The views of a running experiment: a table in a terminal, else lines.

They are plain observers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from det_core.hooks.hookspecs import hookimpl

from ..store import TrialRow
from ._console import shown
from ._output import printable
from ._progress import OUTCOMES, SearchProgress, Silent, numbers, waiting_line

_STATUS_SECONDS = 60.0


def view(
    environ: Mapping[str, str], earlier: Iterable[TrialRow], *, quiet: bool, as_json: bool
) -> Silent:
    """Return the view for the options and the kind of output."""
    if as_json:
        from ._events import EventView

        return EventView()
    if quiet:
        return Silent()
    if sys.stdout.isatty() and environ.get("TERM", "") not in ("", "dumb", "unknown"):
        from ._live import Live

        return Live(earlier)
    return LineView(earlier)


class LineView(SearchProgress):
    """Prints a line for each event, and the progress once in a while, for logs and pipes.

    Of more than 100 reports in a second, the number of the others is printed.
    """

    def __init__(self, earlier: Iterable[TrialRow] = ()) -> None:
        super().__init__(earlier)
        # The status is printed from the first report on.
        self._next_status = math.inf
        # The reports that were not printed.
        self._more = 0

    @hookimpl
    def det_experiment_started(self, experiment: Any) -> None:
        super().det_experiment_started(experiment)
        _print(f"experiment {experiment.id} ({experiment.name})")

    @hookimpl
    def det_trials_waiting(self, experiment: Any, why: str) -> None:
        super().det_trials_waiting(experiment, why)
        _print(f"waiting {why}")

    @hookimpl
    def det_run_started(self, experiment: Any, trial: Any, run: Any) -> None:
        super().det_run_started(experiment, trial, run)
        again = f", run {run.number} from batch {run.first_batch}" if run.number > 1 else ""
        hparams = shown(self.rows[trial.id].chosen or trial.hparams)
        _print(f"trial {trial.id} starts{again}{': ' if hparams else ''}{hparams}")

    @hookimpl
    def det_experiment_finished(self, experiment: Any, state: str) -> None:
        super().det_experiment_finished(experiment, state)
        self._count_more(experiment)

    def _count_more(self, experiment: Any) -> None:
        if self._more:
            _print(f"{self._more} more reports; see them with: det metrics {experiment.id}")
            self._more = 0

    @hookimpl
    def det_trial_noticed(self, trial: Any, notice: str) -> None:
        _print(f"trial {trial.id} notice: {notice}")

    @hookimpl
    def det_checkpoint_saved(self, trial: Any, checkpoint: Any) -> None:
        _print(f"trial {trial.id} batch {checkpoint.batches} checkpoint {checkpoint.uuid}")

    @hookimpl
    def det_run_finished(self, experiment: Any, trial: Any, run: Any, outcome: str) -> None:
        super().det_run_finished(experiment, trial, run, outcome)
        if waiting := waiting_line(trial):
            _print(waiting)
            return
        known = outcome in OUTCOMES
        outcome = OUTCOMES.get(outcome, outcome)
        word = " " + outcome if " " not in outcome or known else ""
        _print(
            "trial"
            f" {trial.id}{word}{f': {run.reason or outcome}' if run.reason or not word else ''}"
        )

    def _begin_second(self, experiment: Any, now: float) -> None:
        super()._begin_second(experiment, now)
        self._count_more(experiment)
        self._status(now)

    def _show_report(
        self, trial_id: int, group: str, batches: int, metrics: Mapping[str, Any]
    ) -> None:
        if self._left >= 0:
            _print(f"trial {trial_id} batch {batches} {group}: {'  '.join(numbers(metrics))}")
        else:
            self._more += 1

    def _happens(self, parts: list[str], metrics: Mapping[str, Any] | None = None) -> None:
        """Keep nothing, as each event is printed."""

    def _status(self, now: float) -> None:
        if now >= self._next_status:
            _print(self.status(now))
        if not now < self._next_status < math.inf:
            self._next_status = now + _STATUS_SECONDS


def _print(line: str) -> None:
    sys.stdout.write(printable(line) + "\n")
    sys.stdout.flush()
