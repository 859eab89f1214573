"""What a notebook shows: a line that is written over while one waits, and a table of the best trials."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from det_core.config import from_json

from ..store import ExperimentSummary, Store
from ._space import Space

_MOST_ROWS = 10


class StatusLine:
    """One line on standard output; each text takes the place of the one before."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._last = ""

    def write(self, summary: ExperimentSummary) -> None:
        """Say how an experiment stands."""
        text = _standing(summary)
        if self._shown and text != self._last:
            sys.stdout.write("\r" + text.ljust(len(self._last)))
            sys.stdout.flush()
            self._last = text

    def close(self) -> None:
        """Leave the last text standing."""
        if self._last:
            sys.stdout.write("\n")


def as_html(store: Store, experiment_id: int) -> str:
    """Return how an experiment stands, and a table of its best trials."""
    summary = store.experiments.summary(experiment_id)
    experiment = summary.experiment
    trials = store.trials.list(experiment_id, best_first=True, limit=_MOST_ROWS)
    space = Space(from_json(experiment.config).hyperparameters)
    names = space.names(trial.hparams for trial in trials)
    rows = [
        [t.id, str(t.state), t.best_metric, t.batches, *(space.chosen(t.hparams).get(name) for name in names)]
        for t in trials
    ]
    more = sum(summary.trials.values()) - len(trials)
    left_out = f"<p>{more} more trials</p>" if more > 0 else ""
    best = f"best {experiment.metric}".strip()
    return f"<p>{escape(_standing(summary))}</p>{_table(['trial', 'state', best, 'batches', *names], rows)}{left_out}"


def _standing(summary: ExperimentSummary) -> str:
    experiment = summary.experiment
    parts = [
        f"experiment {experiment.id} ({experiment.name}) is {experiment.state.lower()}",
        f"{experiment.progress:.0%}",
    ]
    parts += [f"{count} {state.lower()}" for state, count in summary.trials.items() if sum(summary.trials.values()) > 1]
    if summary.best_metric is not None:
        parts.append(f"best {experiment.metric} {summary.best_metric:.6g} (trial {summary.best_trial})")
    return ", ".join(parts)


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
