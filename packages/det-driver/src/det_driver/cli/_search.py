"""`det search`: changes a search that runs, is paused, or is completed."""

from __future__ import annotations

import re
import sys
from typing import Any

import click

from det_core.errors import DetError

from ._console import EXPERIMENTS, Settings

_BETWEEN = re.compile(r",(?=[\w.]+=)")
"""Matches a comma between two hyperparameters, but not one in a list."""


def _parse_number(context: click.Context, parameter: click.Parameter, text: str) -> int:
    """Return the number of an experiment.

    Raises DetError if it is something else, such as a configuration.
    """
    if text.isdecimal():
        return int(text)
    raise DetError(
        f"{text!r} is not the number of an experiment; det list shows the numbers, and det preview"
        " CONFIG shows what the search of a configuration would do"
    )


@click.command()
@click.argument("experiment", callback=_parse_number, shell_complete=EXPERIMENTS)
@click.option(
    "--add-trials", type=click.IntRange(min=1), metavar="N", help="Make so many more trials."
)
@click.option(
    "--enqueue",
    multiple=True,
    metavar="NAME=VALUE,...",
    help=(
        "Make a trial with these hyperparameters before others; those left out are random. May be"
        " repeated."
    ),
)
@click.option(
    "--max-slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Use so many slots at most from now on.",
)
@click.option(
    "--stop-when",
    metavar="CONDITION",
    help="Stop when a validation meets this, as in 'accuracy > 0.97'.",
)
@click.pass_obj
def search(
    settings: Settings,
    experiment: int,
    add_trials: int | None,
    enqueue: tuple[str, ...],
    max_slots: int | None,
    stop_when: str | None,
) -> None:
    """Change the search of EXPERIMENT, whether it runs or not.

    A completed search that gets more trials goes on with det resume.
    """
    from ..driver import SearchSteered, steer

    event = SearchSteered(
        add_trials=add_trials or 0,
        enqueue=tuple(map(_hparams, enqueue)),
        stop_when=stop_when,
        max_slots=max_slots,
    )
    if event == SearchSteered():
        raise click.UsageError(
            "say what to change, with --add-trials, --enqueue, --max-slots or --stop-when"
        )
    with settings.store() as store:
        steer(store, experiment, event, settings.plugins)
        driven = store.experiments.driven(experiment)
    sys.stdout.write(f"experiment {experiment}: {'; '.join(_describe_changes(event))}\n")
    if not driven:
        sys.stdout.write(f"go on with: det resume {experiment}\n")


def _describe_changes(event: Any) -> list[str]:
    """Return what changes, in words."""
    changes = []
    if event.enqueue:
        changes.append(f"{len(event.enqueue)} enqueued trial{'s' * (len(event.enqueue) > 1)}")
    if event.add_trials:
        changes.append(f"{event.add_trials} more trial{'s' * (event.add_trials > 1)}")
    if event.max_slots is not None:
        changes.append(f"{event.max_slots} slot{'s' * (event.max_slots > 1)} at most")
    if event.stop_when is not None:
        changes.append(f"stops when {event.stop_when}")
    return changes


def _hparams(text: str) -> dict[str, Any]:
    """Return hyperparameters by dotted names from NAME=VALUE,..., with values as in YAML."""
    from ..config import parse_yaml

    found: dict[str, Any] = {}
    for part in _BETWEEN.split(text):
        name, _, value = (each.strip() for each in part.partition("="))
        if not name or not value:
            raise click.UsageError(
                f"--enqueue {text}: {part!r} is no NAME=VALUE; give, for example,"
                " lr=0.01,dropout=0.2"
            )
        if name in found:
            raise click.UsageError(
                f"--enqueue {text}: {name} is given twice; use --enqueue once for each trial"
            )
        found[name] = parse_yaml(value, f"--enqueue {text}").data
    return found
