"""`det preview`: what a search would do, without training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from det_core.config import ExperimentConfig
from det_core.entrypoint import make_importable
from det_core.errors import ConfigError

from ..check import searcher_of
from ..config import Loaded
from ..driver import unit_of
from ..search import Simulation, simulate
from ._config import of_config
from ._console import Settings, as_json, print_json, print_table


@click.command()
@of_config
@click.option("--slots", type=click.IntRange(min=1), help="Schedule on so many slots; by default this machine's.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the trials' made-up metrics.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw it into this file, such as search.png.")
@as_json
def preview(
    settings: Settings,
    config: Path,
    read: Loaded,
    code: Path,
    slots: int | None,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Simulate the search of CONFIG: how many trials reach which length, and how long it takes on some slots.

    Nothing is trained or stored: each trial's metric is made up, and all train at the same speed. DIRECTORY holds the
    code of a custom searcher, by default it is the one that holds CONFIG.
    """
    machine = slots or settings.driver().slots
    each = max(1, read.config.resources.slots_per_trial)
    if each > machine:
        raise ConfigError(
            f"resources.slots_per_trial is {each}, and there are {machine} slots; give --slots {each} or more"
        )
    make_importable(code.absolute())
    simulation = simulate(searcher_of(read.config, settings.plugins), machine // each, seed)
    facts = _facts(read.config, simulation, machine, each)
    if plot is not None:
        from ._plots import draw_simulation

        draw_simulation(simulation, facts["unit"], plot)
    if as_json:
        print_json(facts)
        return
    _print(facts)
    if plot is not None:
        sys.stdout.write(f"drawn in {plot}\n")


def _facts(config: ExperimentConfig, simulation: Simulation, slots: int, each: int) -> dict[str, Any]:
    unit = unit_of(config)
    per = _batches_per(config, unit)
    lengths = sorted(simulation.reached.items(), key=lambda item: (item[0] is None, item[0] or 0))
    return {
        "searcher": config.searcher and config.searcher.name,
        "trials": simulation.trials,
        "unit": unit,
        "reached": [{"length": n, "batches": _batches(n, per), "trials": count} for n, count in lengths],
        "units": simulation.units,
        "batches": _batches(simulation.units, per),
        "slots": slots,
        "slots_per_trial": each,
        "trials_at_once": simulation.slots,
        "makespan": simulation.makespan,
        "makespan_batches": _batches(simulation.makespan, per),
        "occupancy": simulation.occupancy,
    }


def _batches_per(config: ExperimentConfig, unit: str) -> float | None:
    """Return how many batches one unit is, where the configuration says it."""
    if unit == "batches":
        return 1.0
    size = getattr(config.hyperparameters.get("global_batch_size"), "val", None)
    if not isinstance(size, int) or size < 1:
        return None
    if unit == "records":
        return 1 / size
    return float(-(-config.records_per_epoch // size)) if config.records_per_epoch else None


def _batches(units: int | None, per: float | None) -> int | None:
    return None if units is None or per is None else round(units * per)


def _print(facts: dict[str, Any]) -> None:
    unit = facts["unit"]
    in_batches = unit != "batches" and facts["batches"] is not None
    sys.stdout.write(f"{facts['searcher']} makes {facts['trials']} trials\n\n")
    columns = ("length", "batches", "trials") if in_batches else ("length", "trials")
    reached = [
        row | {"length": "until it ends" if row["length"] is None else row["length"]} for row in facts["reached"]
    ]
    print_table((unit, *columns[1:]), [[row[column] for column in columns] for row in reached])
    total = f" ({facts['batches']} batches)" if in_batches else ""
    sys.stdout.write(
        f"\nin all: {facts['units']} {unit}{total}\n"
        f"on {facts['slots']} slots, {facts['slots_per_trial']} for a trial: up to {facts['trials_at_once']} trials at once; it "
        f"takes as long as {facts['makespan']} {unit} of one trial, with the slots in use {facts['occupancy']:.0%} of the time\n"
    )
