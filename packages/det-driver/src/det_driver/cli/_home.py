"""Experiments as directories: `det rm`, `det export`, `det import`, `det home`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from det_core.errors import ExperimentBusy

from ..client import Client
from ..driver import is_driven
from ._settings import Settings


@click.command()
@click.argument("experiment", type=int, nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.option("--keep-checkpoints", is_flag=True, help="Leave the files of its checkpoints where they are.")
@click.pass_obj
def rm(settings: Settings, experiment: tuple[int, ...], yes: bool, keep_checkpoints: bool) -> None:
    """Delete EXPERIMENTs for good: metrics, logs, code and checkpoints.

    Checkpoints that trials of other experiments start from are kept. An experiment that is driven is refused; pause it
    first.
    """
    chosen = [Client(settings.home).get_experiment(id) for id in dict.fromkeys(experiment)]
    with settings.reader() as store:
        for each in chosen:
            if is_driven(store, each.id):
                raise ExperimentBusy(f"experiment {each.id} is being driven; stop it first: det pause {each.id}")
    if not yes:
        listed = ", ".join(f"{each.id} ({each.name})" for each in chosen)
        click.confirm(f"delete {listed} for good?", abort=True)
    for each in chosen:
        kept = each.delete(keep_checkpoints=keep_checkpoints)
        sys.stdout.write(f"deleted experiment {each.id}\n")
        if kept:
            sys.stdout.write(f"kept, as other experiments start from them: {', '.join(kept)}\n")


@click.command()
@click.argument("experiment", type=int)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-checkpoints", is_flag=True, help="Leave out the checkpoints that lie in the home.")
@click.pass_obj
def export(settings: Settings, experiment: int, file: Path, no_checkpoints: bool) -> None:
    """Write EXPERIMENT to FILE, a tar: for another home, or to keep.

    The checkpoints that lie in the home come along; those in other storage stay there.
    """
    count = Client(settings.home).get_experiment(experiment).export(file, checkpoints=not no_checkpoints)
    sys.stdout.write(f"exported experiment {experiment} with {count} checkpoint{'s' * (count != 1)} to {file}\n")


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def import_(settings: Settings, file: Path) -> None:
    """Take over the experiment that det export wrote to FILE.

    It keeps its number and those of its trials, unless they are taken here.
    """
    made = Client(settings.home).import_experiment(file)
    sys.stdout.write(f"imported experiment {made.id} ({made.name}); look at it: det show {made.id}\n")


@click.group()
def home() -> None:
    """About the home, the directory that holds the experiments."""


@home.command()
@click.pass_obj
def repair(settings: Settings) -> None:
    """Make the home's index again of the experiments' directories.

    It happens by itself where the index is missing or damaged. Directories that cannot be read are named.
    """
    with settings.store() as store:
        found = store.index.repair()
    for id, summary, _ in found:
        if summary is None:
            sys.stderr.write(f"det: {store.experiment_dir(id)} holds no experiment that can be read\n")
    read = sum(summary is not None for _, summary, _ in found)
    sys.stdout.write(f"{store.index.path} is made again of {read} experiment{'s' * (read != 1)}\n")
