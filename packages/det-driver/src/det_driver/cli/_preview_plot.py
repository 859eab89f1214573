"""The picture of a simulated search."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._plot import new_figure, save_figure

if TYPE_CHECKING:
    from ..search import Simulation

MOST_BARS = 3000


def draw(simulation: Simulation, unit: str, path: Path) -> None:
    """Draw how many trials reach which length, and who holds which slot when, or how many do where they are too many."""
    figure = new_figure(11, 4)
    lengths, schedule = figure.subplots(1, 2, width_ratios=(1, 2))
    _lengths(lengths, simulation, unit)
    _bars(schedule, simulation) if len(simulation) <= MOST_BARS else _in_use(schedule, simulation)
    schedule.set_xlabel(f"time, in {unit} of one trial")
    save_figure(figure, path)


def _lengths(axes: Any, simulation: Simulation, unit: str) -> None:
    items = sorted(simulation.reached.items(), key=lambda item: (item[0] is None, item[0] or 0))
    axes.barh(
        ["until it ends" if length is None else str(length) for length, _ in items], [count for _, count in items]
    )
    axes.set_ylabel(f"trained, in {unit}")
    axes.set_xlabel("trials")
    if max((count for _, count in items), default=0) > 1000:
        axes.set_xscale("log")


def _bars(axes: Any, simulation: Simulation) -> None:
    for segment in simulation.segments():
        left, width = segment.start, segment.end - segment.start
        axes.barh(segment.slot, width, left=left, height=0.9, color=f"C{segment.trial % 10}", edgecolor="white", lw=0.3)
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
