"""Output for notebooks: a status line that is overwritten, and a table of the best trials."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from det_core.config import from_json

from ..store import ExperimentSummary, TrialRow, show_progress
from ._space import Space

MOST_ROWS = 10
"""The most trials in a table."""


class StatusLine:
    """One line on standard output. Each text replaces the one before."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._last = ""

    def write(self, summary: ExperimentSummary) -> None:
        """Show the status of an experiment."""
        text = _standing(summary)
        if self._shown and text != self._last:
            sys.stdout.write("\r" + text.ljust(len(self._last)))
            sys.stdout.flush()
            self._last = text

    def close(self) -> None:
        """End the line, so that the last text stays."""
        if self._last:
            sys.stdout.write("\n")


def as_html(summary: ExperimentSummary, trials: Sequence[TrialRow]) -> str:
    """Return the status of an experiment and a table of its best trials."""
    experiment = summary.experiment
    space = Space(from_json(experiment.config).hyperparameters)
    names = space.names(trial.hparams for trial in trials)
    rows = [
        [
            t.id,
            str(t.state),
            t.best_metric,
            t.batches,
            *(space.chosen(t.hparams).get(name) for name in names),
        ]
        for t in trials
    ]
    more = sum(summary.trials.values()) - len(trials)
    left_out = f"<p>{more} more trials</p>" if more > 0 else ""
    best = f"best {experiment.metric}".strip()
    table = _table(["trial", "state", best, "batches", *names], rows)
    return f"<p>{escape(_standing(summary))}</p>{table}{left_out}"


def _standing(summary: ExperimentSummary) -> str:
    experiment = summary.experiment
    parts = [
        f"experiment {experiment.id} ({experiment.name}) is {experiment.state.lower()}",
        show_progress(experiment.progress),
    ]
    parts += [
        f"{count} {state.lower()}"
        for state, count in summary.trials.items()
        if sum(summary.trials.values()) > 1
    ]
    if summary.best_metric is not None:
        parts.append(
            f"best {experiment.metric} {summary.best_metric:.6g} (trial {summary.best_trial})"
        )
    return ", ".join(parts)


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
