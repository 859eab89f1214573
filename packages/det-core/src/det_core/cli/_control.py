"""`det pause` and `det cancel`: a word for the driver, wherever it runs."""

from __future__ import annotations

import sys
import time

import click

from ..errors import StoreError
from ..store import ExperimentState, Store
from ._settings import Settings

_wait = click.option("--wait/--no-wait", default=True, help="Wait until it is done (the default).")


@click.command()
@click.argument("experiment", type=int)
@_wait
@click.pass_obj
def pause(settings: Settings, experiment: int, wait: bool) -> None:
    """Checkpoint the trials of EXPERIMENT and pause it; go on with det resume."""
    _command(settings, experiment, "pause", ExperimentState.PAUSED, wait)


@click.command()
@click.argument("experiment", type=int)
@_wait
@click.option("--now", is_flag=True, help="Without checkpoints.")
@click.pass_obj
def cancel(settings: Settings, experiment: int, wait: bool, now: bool) -> None:
    """Checkpoint the trials of EXPERIMENT and end it for good."""
    _command(settings, experiment, "kill" if now else "cancel", ExperimentState.CANCELED, wait)


def _command(settings: Settings, id: int, kind: str, state: ExperimentState, wait: bool) -> None:
    with settings.store() as store:
        experiment = store.experiments.get(id)
        if experiment.state.ended:
            raise StoreError(f"experiment {id} is {experiment.state.lower()} already; nothing is left to {kind}")
        if not _driven(store, id):
            store.experiments.update(id, state=state, pid=None, ended=time.time() if state.ended else None)
        else:
            store.commands.send(id, kind)
            while wait and _driven(store, id):
                time.sleep(0.1)
        sys.stdout.write(f"experiment {id} is {store.experiments.get(id).state.lower()}\n")


def _driven(store: Store, id: int) -> bool:
    """Tell whether a driver holds the experiment."""
    from ..errors import ExperimentBusy

    try:
        with store.lock(id):
            return False
    except ExperimentBusy:
        return True
