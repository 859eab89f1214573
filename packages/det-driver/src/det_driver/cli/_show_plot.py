"""The picture of a search: how its trials learnt, and where in the space of hyperparameters they lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..store import ExperimentRow, Store, TrialRow
from ._plot import new_figure, save_figure
from ._show import varied


def draw(
    experiment: ExperimentRow,
    trials: Sequence[TrialRow],
    hparams: Sequence[Mapping[str, Any]],
    store: Store,
    path: Path,
) -> None:
    """Draw the searcher's metric against batches, and below it the trials as lines across their hyperparameters."""
    figure = new_figure(11, 8)
    curves, space = figure.subplots(2, 1)
    colours = _colours([trial.best_metric for trial in trials], experiment.smaller_is_better)
    _curves(curves, experiment, trials, store, colours)
    _parallel(space, experiment, trials, hparams, colours)
    save_figure(figure, path)


def _curves(
    axes: Any, experiment: ExperimentRow, trials: Sequence[TrialRow], store: Store, colours: Sequence[Any]
) -> None:
    for trial, colour in zip(trials, colours, strict=True):
        points = [
            (report.batches, report.values[experiment.metric])
            for report in store.metrics.read(trial_id=trial.id, group="validation")
            if _is_number(report.values.get(experiment.metric))
        ]
        axes.plot(
            *zip(*points, strict=True) if points else ((), ()), color=colour, marker=".", lw=1, label=str(trial.id)
        )
    axes.set_xlabel("batches")
    axes.set_ylabel(experiment.metric)
    if 0 < len(trials) <= 12:
        axes.legend(title="trial")


def _parallel(
    axes: Any,
    experiment: ExperimentRow,
    trials: Sequence[TrialRow],
    hparams: Sequence[Mapping[str, Any]],
    colours: Sequence[Any],
) -> None:
    columns: dict[str, list[Any]] = {name: [each.get(name) for each in hparams] for name in varied(hparams)}
    columns[experiment.metric or "metric"] = [trial.best_metric for trial in trials]
    places = [_places(values) for values in columns.values()]
    for index, colour in enumerate(colours):
        axes.plot([place[index] for place in places], color=colour, lw=1, alpha=0.8)
    for at, (values, place) in enumerate(zip(columns.values(), places, strict=True)):
        axes.axvline(at, color="0.7", lw=0.8)
        for value, height in _ends(values, place):
            axes.annotate(_short(value), (at, height), textcoords="offset points", xytext=(4, 0), fontsize=7)
    axes.set_xticks(range(len(columns)), list(columns))
    axes.set_xlim(-0.2, len(columns) - 0.7)
    axes.set_yticks([])


def _places(values: Sequence[Any]) -> list[float]:
    """Return where values lie on their axis, 0 to 1: by size, by its logarithm over decades, or one step each."""
    numbers = [value for value in values if _is_number(value)]
    if len(numbers) < len([value for value in values if value is not None]):
        names = sorted({str(value) for value in values if value is not None})
        return [math.nan if v is None else names.index(str(v)) / max(1, len(names) - 1) for v in values]
    logarithmic = bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) > 100
    scaled = [(math.log(v) if logarithmic else float(v)) if _is_number(v) else math.nan for v in values]
    real = [v for v in scaled if not math.isnan(v)]
    low, span = (min(real), max(real) - min(real)) if real else (0.0, 0.0)
    return [(v - low) / span if span else v - v + 0.5 for v in scaled]


def _ends(values: Sequence[Any], places: Sequence[float]) -> list[tuple[Any, float]]:
    """Return the values to write beside an axis: all names, of numbers the least and the greatest."""
    placed = {place: value for value, place in zip(values, places, strict=True) if not math.isnan(place)}
    if all(_is_number(value) for value in placed.values()) and placed:
        placed = {place: placed[place] for place in (min(placed), max(placed))}
    return [(value, place) for place, value in placed.items()]


def _colours(values: Sequence[float | None], smaller_is_better: bool) -> list[Any]:
    """Return a colour for each trial by its rank, the best ones dark; grey without a metric."""
    from matplotlib import colormaps

    ranked = sorted((v for v in values if v is not None), reverse=not smaller_is_better)
    shades = {value: colormaps["viridis"](0.9 * rank / max(1, len(ranked) - 1)) for rank, value in enumerate(ranked)}
    return ["0.8" if value is None else shades[value] for value in values]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
