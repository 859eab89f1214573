"""`det checkpoint`: lists, shows, exports and deletes checkpoints."""

from __future__ import annotations

import copy
import sys
import time
from pathlib import Path

import click
import msgspec

from det_core.errors import DetError, StorageError
from det_core.storage import readable

from ..driver import collect_left
from ..store import CheckpointRow, CheckpointState, storage_of_checkpoint
from ._console import CHECKPOINTS, EXPERIMENTS, TRIALS, Settings, ago, as_json, print_json
from ._table import print_table

_SHORTEST = 8
"""The least characters of a uuid that name a checkpoint to be deleted."""


@click.group()
def checkpoint() -> None:
    """List, show, export or delete checkpoints."""


@click.command()
@as_json
@click.pass_obj
def gc(settings: Settings, as_json: bool) -> None:
    """Delete the checkpoints that ended experiments do not keep.

    A driver does it when its experiment ends (checkpoint_storage.save_trial_latest and the like say
    what stays); what was left when that was interrupted, or could not be deleted then, is deleted
    by the next driver, or by this.
    """
    with settings.store() as store:
        deleted = collect_left(store, settings.plugins)
    if as_json:
        print_json({str(id): uuids for id, uuids in deleted.items()})
        return
    for id, uuids in deleted.items():
        sys.stdout.write(f"experiment {id}: {len(uuids)} checkpoints deleted\n")
    if not any(deleted.values()):
        sys.stdout.write("nothing was left to delete\n")


@checkpoint.command("list")
@click.argument("experiment", type=int, shell_complete=EXPERIMENTS)
@click.option("--trial", type=int, shell_complete=TRIALS, help="Of this trial only.")
@click.option("--deleted", is_flag=True, help="Deleted ones too.")
@as_json
@click.pass_obj
def list_(
    settings: Settings, experiment: int, trial: int | None, deleted: bool, as_json: bool
) -> None:
    """List the checkpoints of EXPERIMENT."""
    with settings.reader() as store:
        metric = store.experiments.get(experiment).metric
        found = store.checkpoints.list(experiment_id=experiment)
    hidden = () if deleted else (CheckpointState.DELETED,)
    rows = [c for c in found if trial in (None, c.trial_id) and c.state not in hidden]
    if as_json:
        print_json([msgspec.to_builtins(c) for c in rows])
        return
    now = time.time()
    print_table(
        ("uuid", "trial", "batches", metric or "metric", "size", "state", "created"),
        [
            (
                c.uuid,
                c.trial_id,
                c.batches,
                c.metric,
                readable(c.size),
                _state(c, settings.home),
                ago(c.created, now),
            )
            for c in rows
        ],
        {
            "uuid": 0,
            "trial": 1,
            "batches": 2,
            metric or "metric": 3,
            "state": 4,
            "size": 5,
            "created": 6,
        },
    )


def _state(checkpoint: CheckpointRow, home: Path) -> str:
    """Return the state of a checkpoint. GONE where it is local and its files are missing."""
    place = (checkpoint.storage or str(home / "checkpoints" / checkpoint.uuid)).removeprefix(
        "file://"
    )
    gone = place.startswith("/") and not Path(place).is_dir()
    return (
        "GONE" if gone and checkpoint.state is CheckpointState.COMPLETED else str(checkpoint.state)
    )


@checkpoint.command()
@click.argument("uuid", shell_complete=CHECKPOINTS)
@as_json
@click.pass_obj
def show(settings: Settings, uuid: str, as_json: bool) -> None:
    """Show the checkpoint UUID (or the beginning of it): its files and where they are."""
    with settings.reader() as store:
        found = store.checkpoint(uuid)
        storage = storage_of_checkpoint(store, found, settings.plugins)
    files = storage.files(found.uuid) if found.state is not CheckpointState.DELETED else {}
    if as_json:
        print_json(msgspec.to_builtins(found) | {"files": files, "url": storage.url(found.uuid)})
        return
    sys.stdout.write(
        f"checkpoint {found.uuid} of trial {found.trial_id} at batch {found.batches},"
        f" {readable(found.size)}, {found.state.lower()}, framework"
        f" {found.framework}\n{storage.url(found.uuid)}\n\n"
    )
    print_table(("file", "bytes"), sorted(files.items()))


@checkpoint.command()
@click.argument("uuid", shell_complete=CHECKPOINTS)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    metavar="FORMAT",
    help=(
        "Write the model alone, to be read without det: safetensors, torch-export, onnx, keras or"
        " saved-model."
    ),
)
@click.pass_obj
def export(settings: Settings, uuid: str, directory: Path, form: str | None) -> None:
    """Copy checkpoint UUID into DIRECTORY, verified, or write its model there in another FORMAT."""
    if directory.exists() and any(directory.iterdir()):
        raise StorageError(f"{directory} is not empty; name a directory that does not exist yet")
    found = settings.client().get_checkpoint(uuid)
    if form is not None:
        sys.stdout.write(
            f"exported the model of checkpoint {found.uuid} to {found.export(directory, form)}\n"
        )
        return
    sys.stdout.write(f"exported checkpoint {found.uuid} to {found.download(directory)}\n")


@checkpoint.command()
@click.argument("uuid", shell_complete=CHECKPOINTS, nargs=-1, required=True)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete(settings: Settings, uuid: tuple[str, ...], yes: bool) -> None:
    """Delete checkpoints for good."""
    client = settings.client()
    # Determined's users separate them by commas.
    names = [each for group in uuid for each in group.split(",") if each]
    if not names:
        raise DetError("the uuid is empty; name a checkpoint, as det checkpoint list does")
    found = []
    for name in names:
        each = client.get_checkpoint(name)
        if name != each.uuid and not name.startswith("model:") and len(name) < _SHORTEST:
            raise DetError(
                f"{name!r} begins the uuid of a checkpoint, and is too short to delete it: give"
                f" {_SHORTEST} characters or more of {each.uuid}"
            )
        found.append(each)
    if not yes:
        click.confirm(
            f"delete {len(found)} checkpoint{'s' * (len(found) > 1)} for good?", abort=True
        )
    for each in found:
        each.delete()
        sys.stdout.write(f"deleted checkpoint {each.uuid}\n")


# The names that Determined's users type.
_same = copy.copy(show)
_same.hidden = True
checkpoint.add_command(_same, "describe")


@checkpoint.command(hidden=True)
@click.argument("uuid", shell_complete=CHECKPOINTS, nargs=-1, required=True)
@click.option(
    "--glob", "-g", "patterns", multiple=True, help="Refused: a checkpoint is whole, or deleted."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def rm(context: click.Context, uuid: tuple[str, ...], patterns: tuple[str, ...], yes: bool) -> None:
    """Delete checkpoints for good."""
    if patterns:
        raise DetError(
            "no such option '--glob'; use det checkpoint export UUID DIRECTORY, and det checkpoint"
            " delete UUID: a checkpoint is whole, or deleted"
        )
    context.invoke(delete, uuid=uuid, yes=yes)


@checkpoint.command(hidden=True)
@click.argument("uuid", shell_complete=CHECKPOINTS)
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(path_type=Path),
    help="Where to. By default checkpoints/UUID.",
)
@click.pass_context
def download(
    context: click.Context, uuid: str, directory: Path | None, output_dir: Path | None
) -> None:
    """Copy the checkpoint UUID, verified."""
    context.invoke(
        export, uuid=uuid, directory=directory or output_dir or Path("checkpoints", uuid), form=None
    )
