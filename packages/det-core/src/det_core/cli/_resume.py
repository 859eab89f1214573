"""`det resume`: go on."""

from __future__ import annotations

import click

from ._drive import detach, drive
from ._output import as_json
from ._settings import Settings


@click.command()
@click.argument("experiment", type=int)
@click.option("--detach", "in_background", is_flag=True, help="Run in the background and return at once.")
@click.option("--in-process", is_flag=True, help="Train in this process, one trial at a time: for a debugger.")
@click.option("--quiet", "-q", is_flag=True, help="Print the result only.")
@as_json
@click.pass_obj
def resume(
    settings: Settings, experiment: int, in_background: bool, in_process: bool, quiet: bool, as_json: bool
) -> None:
    """Go on with EXPERIMENT from its trials' checkpoints: after a pause, a crash, or a failure that was mended.

    Trials that had failed are tried again where the searcher has only one.
    """
    from ..experiment import reopen

    with settings.store() as store:
        reopen(store, experiment)
    if in_background:
        detach(settings, experiment, as_json=as_json)
        return
    engine = "in-process" if in_process else "local"
    raise SystemExit(drive(settings, experiment, engine=engine, quiet=quiet, as_json=as_json))
