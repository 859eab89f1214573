"""`det queue` and `det set`: the queue for slots, and an experiment's place in it."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from typing import Any

import click

from det_core.errors import DetError, StoreError

from ..queue import Holding, Request
from ..store import Store
from ._console import EXPERIMENTS, Settings, as_json, clock, print_json
from ._table import print_table

_RANKS = {
    "id": 0,
    "state": 1,
    "slots": 2,
    "for": 3,
    "priority": 4,
    "name": 5,
    "runs": 6,
    "devices": 7,
    "weight": 8,
}


@click.command()
@as_json
@click.pass_obj
def queue(settings: Settings, as_json: bool) -> None:
    """List what waits for slots of this machine, the next one first, and what holds them.

    A waiting row has the number of runs that could start and the slots that each needs. Below are
    the runs that hold slots, with the priority from which on they are preempted, if that differs.
    """
    rows: list[dict[str, Any]] = []
    if Store.is_at(settings.home):
        with settings.reader() as store:
            view = store.slots.queue()
            rows += [_waiting(store, each, view.now) for each in view.waiting]
            rows += [_holding(store, each, view.now) for each in view.holding]
    if as_json:
        print_json(rows)
        return
    if not rows:
        sys.stdout.write("nothing waits for slots, and nothing holds any\n")
        return
    print_table(
        ("id", "name", "state", "runs", "slots", "priority", "weight", "for", "devices"),
        [
            (
                *(row["experiment"], row["name"], row["state"], row["runs"], row["slots"]),
                *(row["priority"], row["weight"], clock(row["seconds"])),
                " ".join(row["devices"]) + _needed(row),
            )
            for row in rows
        ],
        _RANKS,
    )


def _needed(row: dict[str, Any]) -> str:
    needed_by = row["needed_by"]
    return "" if needed_by is None else f" (to be given to experiment {needed_by})"


def _waiting(store: Store, request: Request, now: float) -> dict[str, Any]:
    return _row(store, request, now, "waiting", request.runs, request.slots) | {
        "weight": request.weight,
        "rank": request.rank(now),
    }


def _holding(store: Store, holding: Holding, now: float) -> dict[str, Any]:
    return _row(store, holding, now, "running", 1, len(holding.devices)) | {
        "devices": list(holding.devices),
        "rank": holding.protected(now),
        "needed_by": holding.recalled_by,
    }


def _row(
    store: Store, each: Request | Holding, now: float, state: str, runs: int, slots: int
) -> dict[str, Any]:
    name = None
    with suppress(StoreError):
        name = store.experiments.get(each.experiment).name
    return {
        "experiment": each.experiment,
        "name": name,
        "state": state,
        "runs": runs,
        "slots": slots,
        "priority": each.priority,
        "rank": None,
        "weight": None,
        "seconds": max(0.0, now - each.since),
        "devices": [],
        "needed_by": None,
    }


def _whole(least: int, most: float) -> Any:
    def parse(text: str) -> int:
        if text.isdecimal() and least <= int(text) <= most:
            return int(text)
        wanted = f"from {least} to {most}" if most < math.inf else f"of {least} or more"
        raise DetError(f"{text!r} is not a whole number {wanted}")

    return parse


def _weight(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise DetError(f"{text!r} is not a number above 0")


def _limit(text: str) -> int:
    try:
        return 0 if text == "none" else int(_whole(1, math.inf)(text))
    except DetError as error:
        raise DetError(f"{error}, or none for no limit") from None


_SETTINGS = {"priority": _whole(1, 99), "weight": _weight, "max-slots": _limit}


@click.command("set")
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.argument("setting", type=click.Choice([*_SETTINGS]))
@click.argument("value")
@click.pass_obj
def set_(settings: Settings, experiment: int, setting: str, value: str) -> None:
    """Change a setting of EXPERIMENT in the queue for slots, whether it runs or not.

    - priority: 1 to 99, 1 before 99. Runs of others with a greater number are preempted.
    - weight: its share among experiments of the same priority.
    - max-slots: the most slots that its trials hold at once, or none for no limit.
    """
    from ..driver import SearchSteered, steer

    try:
        parsed = _SETTINGS[setting](value)
    except DetError as error:
        raise DetError(f"{setting}: {error}") from None
    with settings.store() as store:
        event = SearchSteered(**{setting.replace("-", "_"): parsed})
        steer(store, experiment, event, settings.plugins)
        driven = store.experiments.driven(experiment)
    sys.stdout.write(f"experiment {experiment}: {setting} {f'{parsed:g}' if parsed else 'none'}\n")
    if not driven:
        sys.stdout.write(f"go on with: det resume {experiment}\n")
