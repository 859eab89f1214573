"""`det run`: create an experiment and drive it here."""

from __future__ import annotations

from pathlib import Path

import click

from ._drive import detach, drive
from ._engine import chosen_engine, engine_options
from ._load import load_config, overrides, template
from ._output import as_json
from ._settings import Settings


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@overrides
@template
@click.option("--detach", "in_background", is_flag=True, help="Run in the background and return at once.")
@engine_options
@click.option("--quiet", "-q", is_flag=True, help="Print the result only.")
@as_json
@click.pass_obj
def run(
    settings: Settings,
    config: Path,
    directory: Path | None,
    override: tuple[str, ...],
    template: Path | None,
    in_background: bool,
    in_process: bool,
    engine: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train the experiment that the YAML file CONFIG describes, with the code in DIRECTORY.

    DIRECTORY is by default the one that holds CONFIG. Ctrl-C checkpoints and pauses; a second Ctrl-C ends at once.
    """
    from ..driver import check_slots, create

    loaded = load_config(settings, config, override, template)
    code = directory or config.absolute().parent
    chosen = chosen_engine(settings, engine=engine, in_process=in_process, in_background=in_background)
    check_slots(loaded.config, settings.driver())
    with settings.store() as store:
        experiment = create(store, loaded.config, code, default_name=config.absolute().parent.name)
    if in_background:
        detach(settings, experiment, engine=chosen, as_json=as_json)
        return
    raise SystemExit(drive(settings, experiment, engine=chosen, quiet=quiet, as_json=as_json))
