"""`det run`: create an experiment and drive it here."""

from __future__ import annotations

from pathlib import Path

import click

from ._drive import detach, drive
from ._load import load_config, overrides, template
from ._output import as_json
from ._settings import Settings


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@overrides
@template
@click.option("--detach", "in_background", is_flag=True, help="Run in the background and return at once.")
@click.option("--in-process", is_flag=True, help="Train in this process, one trial at a time: for a debugger.")
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
    quiet: bool,
    as_json: bool,
) -> None:
    """Train the experiment that the YAML file CONFIG describes, with the code in DIRECTORY.

    DIRECTORY is by default the one that holds CONFIG. Ctrl-C checkpoints and pauses; a second Ctrl-C ends at once.
    """
    from ..experiment import check_slots, create

    loaded = load_config(settings, config, override, template)
    code = directory or config.absolute().parent
    if in_background and in_process:
        raise click.UsageError("--detach and --in-process contradict each other; choose one")
    check_slots(loaded.config, settings.driver())
    with settings.store() as store:
        experiment = create(store, loaded.config, code, default_name=config.absolute().parent.name)
    if in_background:
        detach(settings, experiment, as_json=as_json)
        return
    engine = "in-process" if in_process else "local"
    raise SystemExit(drive(settings, experiment, engine=engine, quiet=quiet, as_json=as_json))
