"""`det resume`: go on."""

from __future__ import annotations

import click

from ._drive import detach, drive
from ._engine import chosen_engine, engine_options
from ._output import as_json
from ._settings import Settings


@click.command()
@click.argument("experiment", type=int)
@click.option("--detach", "in_background", is_flag=True, help="Run in the background and return at once.")
@engine_options
@click.option("--quiet", "-q", is_flag=True, help="Print the result only.")
@as_json
@click.pass_obj
def resume(
    settings: Settings,
    experiment: int,
    in_background: bool,
    in_process: bool,
    engine: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Go on with EXPERIMENT from its trials' checkpoints: after a pause, a crash, or a failure that was mended.

    Trials that had failed are tried again where the searcher has only one.
    """
    from ..driver import reopen

    chosen = chosen_engine(settings, engine=engine, in_process=in_process, in_background=in_background)
    with settings.store() as store:
        reopen(store, experiment)
    if in_background:
        detach(settings, experiment, engine=chosen, as_json=as_json)
        return
    raise SystemExit(drive(settings, experiment, engine=chosen, quiet=quiet, as_json=as_json))
