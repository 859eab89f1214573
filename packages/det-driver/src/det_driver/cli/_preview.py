"""`det preview`: simulates a search, without training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from det_core.config import ExperimentConfig
from det_core.errors import ConfigError

from ..client import Space
from ..config import Loaded
from ..driver import searcher_of, unit_of
from ..search import Simulation, simulate
from ._config import of_config
from ._console import Settings, as_json, print_json
from ._table import print_table


@click.command()
@of_config
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    help="Schedule on so many slots. By default this machine's.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the trials' made-up metrics."
)
@click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw it into this file, such as search.png."
)
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
    """Simulate the search of CONFIG: how many trials reach which length, and how long it takes.

    The hyperparameters of the first trials are shown, and how many choices the constraints refused.
    Nothing is trained or stored: each trial's metric is made up, and all train at the same speed.
    DIRECTORY holds the code of a custom searcher, by default it is the one that holds CONFIG.
    """
    machine = slots or settings.driver().slots
    each = max(1, read.config.resources.slots_per_trial)
    if each > machine:
        raise ConfigError(
            f"resources.slots_per_trial is {each}, and there are {machine} slots; give --slots"
            f" {each} or more"
        )
    at_once = min(
        machine // each, getattr(read.config.searcher, "max_concurrent_trials", 0) or machine
    )
    searcher = searcher_of(read.config, settings.plugins, code.absolute())
    simulation = simulate(searcher, at_once, seed)
    facts = _facts(read.config, simulation, machine, each)
    if searcher.limits:
        facts |= {"drawn": searcher.limits.drawn, "refused": searcher.limits.refused}
    if plot is not None:
        from ._plots import draw_simulation

        draw_simulation(simulation, facts["unit"], plot)
    if as_json:
        print_json(facts)
        return
    _print(
        facts,
        Space(read.config.hyperparameters).columns(simulation.samples),
        seeded=read.config.reproducibility.experiment_seed is not None,
    )
    if plot is not None:
        sys.stdout.write(f"drawn in {plot}\n")


def _facts(
    config: ExperimentConfig, simulation: Simulation, slots: int, each: int
) -> dict[str, Any]:
    unit = unit_of(config)
    per = _batches_per(config, unit)
    lengths = sorted(simulation.reached.items(), key=lambda item: (item[0] is None, item[0] or 0))
    return {
        "searcher": config.searcher and config.searcher.name,
        "trials": simulation.trials,
        "samples": simulation.samples,
        "unit": unit,
        "reached": [
            {"length": n, "batches": _batches(n, per), "trials": count} for n, count in lengths
        ],
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
    """Return the number of batches in one unit. None where the configuration does not define it."""
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


def _print(facts: dict[str, Any], samples: dict[str, list[Any]], *, seeded: bool) -> None:
    unit = facts["unit"]
    in_batches = unit != "batches" and facts["batches"] is not None
    sys.stdout.write(f"{facts['searcher']} makes {facts['trials']} trials\n\n")
    columns = ("length", "batches", "trials") if in_batches else ("length", "trials")
    reached = [
        row | {"length": "until it ends" if row["length"] is None else row["length"]}
        for row in facts["reached"]
    ]
    print_table((unit, *columns[1:]), [[row[column] for column in columns] for row in reached])
    total = f" ({facts['batches']} batches)" if in_batches else ""
    sys.stdout.write(
        f"\nin all: {facts['units']} {unit}{total}\non {facts['slots']} slots,"
        f" {facts['slots_per_trial']} for a trial: up to {facts['trials_at_once']} trials at once;"
        f" it takes as long as {facts['makespan']} {unit} of one trial, with the slots in use"
        f" {facts['occupancy']:.0%} of the time\n"
    )
    if samples:
        count = len(facts["samples"])
        sys.stdout.write(
            f"\nhyperparameters of the first {count} trials\n\n"
            if seeded
            else f"\nhyperparameters of {count} trials, as examples; det run draws others, unless"
            " reproducibility.experiment_seed is set\n\n"
        )
        print_table(tuple(samples), [*zip(*samples.values(), strict=True)])
    if facts.get("refused"):
        share = facts["refused"] / facts["drawn"]
        sys.stdout.write(
            f"\nconstraints refused {facts['refused']} of {facts['drawn']} choices ({share:.0%})\n"
        )
