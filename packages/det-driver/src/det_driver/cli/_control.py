"""`det pause` and `det cancel`: a word for the driver, wherever it runs."""

from __future__ import annotations

import sys
import time

import click

from ._settings import Settings

_wait = click.option("--wait/--no-wait", default=True, help="Wait until it is done (the default).")


@click.command()
@click.argument("experiment", type=int)
@_wait
@click.pass_obj
def pause(settings: Settings, experiment: int, wait: bool) -> None:
    """Checkpoint the trials of EXPERIMENT and pause it; go on with det resume."""
    _command(settings, experiment, "pause", wait)


@click.command()
@click.argument("experiment", type=int)
@_wait
@click.option("--now", is_flag=True, help="Without checkpoints.")
@click.pass_obj
def cancel(settings: Settings, experiment: int, wait: bool, now: bool) -> None:
    """Checkpoint the trials of EXPERIMENT and end it for good."""
    _command(settings, experiment, "kill" if now else "cancel", wait)


def _command(settings: Settings, id: int, kind: str, wait: bool) -> None:
    from ..driver import ask, is_driven

    with settings.store() as store:
        ask(store, id, kind)
        while wait and is_driven(store, id):
            time.sleep(0.1)
        sys.stdout.write(f"experiment {id} is {store.experiments.get(id).state.lower()}\n")
