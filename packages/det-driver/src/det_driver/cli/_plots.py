"""The figures of `--plot`, which need matplotlib."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from det_core.errors import DetError

from ..client import Space
from ..search import Simulation
from ..store import ExperimentRow, Store, TrialRow
from ._console import optional, shown

MOST_BARS = 3000
_MOST_NAMED = 12
_MOST_SLICES = 6
_BRIGHTEST = 0.9


@contextmanager
def _figure(path: Path, height: float) -> Iterator[Any]:
    """Yield an empty figure, `height` inches high, and save it in the format of `path`'s suffix."""
    figure = optional("matplotlib.figure", "--plot draws").Figure(
        figsize=(11, height), layout="constrained"
    )
    yield figure
    try:
        figure.savefig(path, dpi=150)
    except (ValueError, OSError) as error:
        why = " ".join(str(error).split())
        raise DetError(f"cannot draw into {path}: {why}; give a file such as plot.png") from error


def draw_trials(
    experiment: ExperimentRow, trials: Sequence[TrialRow], space: Space, store: Store, path: Path
) -> None:
    """Draw the metric against batches, the trials as parallel coordinates, and slices.

    A slice shows the metric along one hyperparameter. Axes of hyperparameters with a log scale are
    logarithmic. A bar shows the colours of the ranks.
    """
    metric = experiment.metric or "metric"
    names = space.names(trial.hparams for trial in trials)
    chosen = [space.chosen(trial.hparams) for trial in trials]
    best = [trial.best_metric for trial in trials]
    columns = {name: [each.get(name) for each in chosen] for name in names} | {metric: best}
    with _figure(path, 11 if names else 5) as figure:
        parts = figure.subfigures(3 if names else 1, 1, squeeze=False)[:, 0]
        colours = _colours(best, experiment.smaller_is_better)
        curves = parts[0].subplots()
        _curves(curves, metric, trials, store, colours)
        _legend(parts[0], curves, sum(value is not None for value in best))
        if names:
            logarithmic = [name for name in names if space.logarithmic(name)]
            _parallel(parts[1].subplots(), columns, colours, logarithmic)
            _slices(parts[2], columns, metric, colours, logarithmic)


def _curves(
    axes: Any, metric: str, trials: Sequence[TrialRow], store: Store, colours: Sequence[Any]
) -> None:
    for trial, colour in zip(trials, colours, strict=True):
        reports = store.metrics.read(trial_id=trial.id, group="validation")
        points = {r.batches: r.values[metric] for r in reports if _is_number(r.values.get(metric))}
        axes.plot(
            [*points], [*points.values()], color=colour, marker=".", lw=1, label=str(trial.id)
        )
    axes.set_xlabel("batches")
    axes.set_ylabel(metric)
    if 0 < len(trials) <= _MOST_NAMED:
        axes.legend(title="trial", fontsize=7)


def _legend(figure: Any, axes: Any, measured: int) -> None:
    """Draw the bar that shows the colours of the ranks."""
    if measured > 1:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        bar = figure.colorbar(
            ScalarMappable(Normalize(1, 1 + (measured - 1) / _BRIGHTEST), "viridis"),
            ax=axes,
            label="rank of the trial",
        )
        bar.ax.set_ylim(1, measured)
        bar.ax.invert_yaxis()


def _slices(
    figure: Any,
    columns: Mapping[str, Sequence[Any]],
    metric: str,
    colours: Sequence[Any],
    logarithmic: Any,
) -> None:
    *names, last = columns
    shown_names = names[:_MOST_SLICES]
    for axes, name in zip(
        figure.subplots(1, len(shown_names), sharey=True, squeeze=False)[0],
        shown_names,
        strict=True,
    ):
        pairs = zip(columns[name], columns[last], colours, strict=True)
        points = [(x, y, colour) for x, y, colour in pairs if x is not None and y is not None]
        numeric = all(_is_number(x) for x, _, _ in points)
        axes.scatter(
            [x if numeric else str(x) for x, _, _ in points],
            [y for _, y, _ in points],
            color=[c for *_, c in points],
            s=14,
        )
        if name in logarithmic:
            axes.set_xscale("log")
        axes.set_xlabel(name)
    figure.supylabel(metric, fontsize="medium")


def _parallel(
    axes: Any, columns: Mapping[str, Sequence[Any]], colours: Sequence[Any], logarithmic: Any
) -> None:
    places = [_places(values, name in logarithmic) for name, values in columns.items()]
    for index, colour in enumerate(colours):
        axes.plot([place[index] for place in places], color=colour, lw=1, alpha=0.8)
    for at, (values, place) in enumerate(zip(columns.values(), places, strict=True)):
        axes.axvline(at, color="0.7", lw=0.8)
        for value, height in _ends(values, place):
            axes.annotate(
                shown(value), (at, height), textcoords="offset points", xytext=(4, 0), fontsize=7
            )
    axes.set_xticks(range(len(columns)), list(columns))
    axes.set_xlim(-0.2, len(columns) - 0.7)
    axes.set_yticks([])


def _places(values: Sequence[Any], logarithmic: bool) -> list[float]:
    """Return the positions of values on their axis, 0 to 1.

    Numbers are placed by their size, or by its logarithm. Names are placed at equal distances.
    """
    numbers = [value for value in values if _is_number(value)]
    if len(numbers) < len([value for value in values if value is not None]):
        names = sorted({str(value) for value in values if value is not None})
        return [
            math.nan if v is None else names.index(str(v)) / max(1, len(names) - 1) for v in values
        ]
    logarithmic = logarithmic and bool(numbers) and min(numbers) > 0
    scaled = [
        (math.log(v) if logarithmic else float(v)) if _is_number(v) else math.nan for v in values
    ]
    real = [v for v in scaled if not math.isnan(v)]
    low, span = (min(real), max(real) - min(real)) if real else (0.0, 0.0)
    return [(v - low) / span if span else v - v + 0.5 for v in scaled]


def _ends(values: Sequence[Any], places: Sequence[float]) -> list[tuple[Any, float]]:
    """Return an axis' labels with their positions: all names, or the least and greatest number."""
    placed = {
        place: value for value, place in zip(values, places, strict=True) if not math.isnan(place)
    }
    if all(_is_number(value) for value in placed.values()) and placed:
        placed = {place: placed[place] for place in (min(placed), max(placed))}
    return [(value, place) for place, value in placed.items()]


def _colours(values: Sequence[float | None], smaller_is_better: bool) -> list[Any]:
    """Return a colour for each trial by its rank, the best ones dark. Grey without a metric."""
    from matplotlib import colormaps

    ranked = sorted((v for v in values if v is not None), reverse=not smaller_is_better)
    shades = {
        value: colormaps["viridis"](_BRIGHTEST * rank / max(1, len(ranked) - 1))
        for rank, value in enumerate(ranked)
    }
    return ["0.8" if value is None else shades[value] for value in values]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def draw_simulation(simulation: Simulation, unit: str, path: Path) -> None:
    """Draw how many trials reach each length, and which trial uses which slot when.

    With more than `MOST_BARS` trials, it draws how many train at once.
    """
    with _figure(path, 4) as figure:
        lengths, schedule = figure.subplots(1, 2, width_ratios=(1, 2))
        _lengths(lengths, simulation, unit)
        (
            _bars(schedule, simulation)
            if len(simulation) <= MOST_BARS
            else _in_use(schedule, simulation)
        )
        schedule.set_xlabel(f"time, in {unit} of one trial")


def _lengths(axes: Any, simulation: Simulation, unit: str) -> None:
    items = sorted(simulation.reached.items(), key=lambda item: (item[0] is None, item[0] or 0))
    counts = [count for _, count in items]
    axes.barh(["until it ends" if length is None else str(length) for length, _ in items], counts)
    axes.set_ylabel(f"trained, in {unit}")
    axes.set_xlabel("trials")
    if max(counts, default=0) > 1000:
        axes.set_xscale("log")


def _bars(axes: Any, simulation: Simulation) -> None:
    for segment in simulation.segments():
        left, width = segment.start, segment.end - segment.start
        axes.barh(
            segment.slot,
            width,
            left=left,
            height=0.9,
            color=f"C{segment.trial % 10}",
            edgecolor="white",
            lw=0.3,
        )
    axes.set_ylabel("slot")
    axes.yaxis.get_major_locator().set_params(integer=True)


def _in_use(axes: Any, simulation: Simulation) -> None:
    steps: Counter[int] = Counter()
    for segment in simulation.segments():
        steps[segment.start] += 1
        steps[segment.end] -= 1
    times = sorted(steps)
    axes.step(times, list(accumulate(steps[time] for time in times)), where="post", lw=0.8)
    axes.set_ylabel("trials at once")
    axes.set_ylim(bottom=0)
