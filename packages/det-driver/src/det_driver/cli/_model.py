"""`det model`: the registry of models, whose versions point to checkpoints."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click
import msgspec

from det_core.errors import DetError, StoreError

from ..store import ModelVersionRow, Store
from ._console import CHECKPOINTS, Settings, ago, as_json, completing, print_json, shown
from ._output import printable
from ._table import print_table


def _models(store: Store, context: click.Context) -> list[tuple[object, str]]:
    rows = store.models.list(archived=None)
    return [(row.name, f"{row.versions} versions") for row in rows]


_MODELS = completing(_models)
_name = click.argument("name", shell_complete=_MODELS)
_reference = click.argument("model", metavar="NAME[/VERSION]", shell_complete=_MODELS)


def _described(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that models and versions share."""
    for option in (
        click.option(
            "--metadata", multiple=True, metavar="KEY=VALUE", help="A value. May be repeated."
        ),
        click.option("--label", "labels", multiple=True, help="A label. May be repeated."),
        click.option("--notes", help="Notes of any length."),
    ):
        command = option(command)
    return command


@click.group()
def model() -> None:
    """Name checkpoints as versions of models, and keep them.

    A version or its checkpoint is named as NAME/VERSION or NAME@ALIAS; NAME alone means the newest
    version.
    """


@model.command()
@click.argument("name")
@click.option("--description", help="What the model is for.")
@_described
@click.pass_obj
def create(
    settings: Settings,
    name: str,
    description: str | None,
    notes: str | None,
    labels: tuple[str, ...],
    metadata: tuple[str, ...],
) -> None:
    """Make the model NAME, without a version yet."""
    given = _given(notes, labels, metadata)
    if description is not None:
        given["description"] = description
    settings.client().create_model(name, **given)
    sys.stdout.write(f"created model {name}\n")


@model.command("list")
@click.option("--all", "everything", is_flag=True, help="Archived ones too.")
@as_json
@click.pass_obj
def list_(settings: Settings, everything: bool, as_json: bool) -> None:
    """List the models."""
    rows = []
    if Store.is_at(settings.home):
        with settings.reader() as store:
            rows = store.models.list(archived=None if everything else False)
    if as_json:
        print_json([msgspec.to_builtins(row) for row in rows])
        return
    now = time.time()
    print_table(
        ("name", "versions", "latest", "aliases", "labels", "changed", "description"),
        [
            (
                row.name,
                row.versions,
                row.latest,
                ", ".join(f"{alias}: {version}" for alias, version in row.aliases.items()),
                ", ".join(row.labels),
                ago(row.updated, now),
                row.description,
            )
            for row in rows
        ],
        {
            "name": 0,
            "latest": 1,
            "aliases": 2,
            "versions": 3,
            "changed": 4,
            "labels": 5,
            "description": 6,
        },
    )


@model.command()
@_reference
@as_json
@click.pass_obj
def show(settings: Settings, model: str, as_json: bool) -> None:
    """Show a model and its versions, or one version with its checkpoint."""
    with settings.reader() as store:
        if "/" in model or "@" in model:
            _show_version(store, store.models.refer(model), as_json)
            return
        row, versions = store.models.get(model), store.models.versions(model)
        metrics = {}
        for each in versions:
            # An experiment's directory may have been removed by hand.
            with suppress(StoreError):
                metrics[each.uuid] = store.checkpoints.get(each.uuid).metric
    if as_json:
        print_json(msgspec.to_builtins(row) | {"list": [msgspec.to_builtins(v) for v in versions]})
        return
    archived = ", archived" * row.archived
    sys.stdout.write(
        f"model {printable(row.name)} has {row.versions} version{'s' * (row.versions != 1)}"
        f"{archived}\n"
    )
    _print_facts(
        description=row.description, labels=row.labels, metadata=row.metadata, notes=row.notes
    )
    now = time.time()
    print_table(
        ("version", "aliases", "checkpoint", "metric", "name", "created"),
        [
            (
                each.version,
                ", ".join(each.aliases),
                each.uuid,
                metrics.get(each.uuid),
                each.name,
                ago(each.created, now),
            )
            for each in versions
        ],
        {"version": 0, "checkpoint": 1, "aliases": 2, "metric": 3, "created": 4, "name": 5},
    )


def _show_version(store: Store, row: ModelVersionRow, as_json: bool) -> None:
    checkpoint = store.checkpoints.get(row.uuid)
    trial = store.trials.get(checkpoint.trial_id)
    if as_json:
        found = msgspec.to_builtins(row) | {"checkpoint": msgspec.to_builtins(checkpoint)}
        print_json(found | {"experiment": trial.experiment_id})
        return
    metric = "" if checkpoint.metric is None else f", {shown(checkpoint.metric)} in validation"
    sys.stdout.write(
        f"version {row.version} of model {printable(row.model)}: checkpoint {row.uuid} of trial"
        f" {trial.id} of experiment {trial.experiment_id} at batch {checkpoint.batches}{metric}\n"
    )
    _print_facts(
        name=row.name,
        aliases=row.aliases,
        labels=row.labels,
        metadata=row.metadata,
        notes=row.notes,
    )


def _print_facts(**facts: Any) -> None:
    for name, value in facts.items():
        if value:
            text = ", ".join(value) if isinstance(value, tuple) else shown(value)
            sys.stdout.write(f"{name}: {printable(text)}\n")


@model.command("add-version")
@_name
@click.argument("uuid", shell_complete=CHECKPOINTS)
@click.option("--alias", "aliases", multiple=True, help="Point this alias to it. May be repeated.")
@click.option("--name", "called", help="A name for the version, besides its number.")
@_described
@click.pass_obj
def add_version(
    settings: Settings,
    name: str,
    uuid: str,
    aliases: tuple[str, ...],
    called: str | None,
    notes: str | None,
    labels: tuple[str, ...],
    metadata: tuple[str, ...],
) -> None:
    """Make the checkpoint UUID (or the beginning of it) the newest version of the model NAME.

    The checkpoint is kept as long as the version exists.
    """
    given = _given(notes, labels, metadata) | ({} if called is None else {"name": called})
    made = settings.client().get_model(name).add_version(uuid, aliases=aliases, **given)
    sys.stdout.write(f"checkpoint {made.uuid} is version {made.version} of model {name}\n")


@model.command()
@_name
@click.argument("alias")
@click.argument("version", required=False)
@click.option("--remove", is_flag=True, help="Remove the alias.")
@click.pass_obj
def alias(settings: Settings, name: str, alias: str, version: str | None, remove: bool) -> None:
    """Point ALIAS of the model NAME to VERSION: a number, another alias, or latest.

    If it pointed to another version, it moves.
    """
    if remove == (version is not None):
        raise click.UsageError("give either a VERSION or --remove")
    found = settings.client().get_model(name)
    if remove:
        found.remove_alias(alias)
        sys.stdout.write(f"model {name} has no alias {alias} any more\n")
    else:
        made = found.set_alias(alias, version)
        sys.stdout.write(f"{name}@{alias} is version {made.version}, checkpoint {made.uuid}\n")


@model.command()
@_reference
@click.option("--name", "called", help="Another name.")
@click.option("--description", help="What the model is for.")
@click.option("--archive/--unarchive", default=None, help="Whether det model list leaves it out.")
@_described
@click.pass_obj
def edit(
    settings: Settings,
    model: str,
    called: str | None,
    description: str | None,
    archive: bool | None,
    notes: str | None,
    labels: tuple[str, ...],
    metadata: tuple[str, ...],
) -> None:
    """Change what is known of a model or a version.

    Labels replace those there were, and "" removes them. Values of --metadata are added, and KEY=
    removes one.
    """
    changes = _given(notes, [label for label in labels if label], metadata)
    if labels:
        changes["labels"] = [label for label in labels if label]
    of_model = {"description": description, "archived": archive}
    of_model = {name: value for name, value in of_model.items() if value is not None}
    changes |= {} if called is None else {"name": called}
    if not changes and not of_model:
        raise click.UsageError("nothing to change is given")
    client = settings.client()
    found: Any
    if "/" in model or "@" in model:
        if of_model:
            raise click.UsageError("a version has no description of its own, and is not archived")
        found = client.get_model_version(model)
    else:
        found = client.get_model(model)
    if "metadata" in changes:
        merged = found.metadata | changes["metadata"]
        changes["metadata"] = {key: value for key, value in merged.items() if value != ""}
    found.edit(**changes, **of_model)
    sys.stdout.write(f"changed {model}\n")


@model.command()
@_reference
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete(settings: Settings, model: str, yes: bool) -> None:
    """Delete a model with its versions, or one version. Checkpoints are not deleted."""
    client = settings.client()
    if "/" in model or "@" in model:
        version = client.get_model_version(model)
        what, uuids = f"version {version.version} of model {version.model_name}", [version.uuid]
        _confirm(what, yes)
        version.delete()
    else:
        found = client.get_model(model)
        uuids = [each.uuid for each in found.list_versions()]
        what = f"model {model}"
        _confirm(f"{what} with {len(uuids)} version{'s' * (len(uuids) != 1)}", yes)
        found.delete()
    sys.stdout.write(f"deleted {what}\n")
    if uuids:
        sys.stdout.write("its checkpoints stay; delete them with: det checkpoint delete UUID\n")


def _confirm(what: str, yes: bool) -> None:
    if not yes:
        click.confirm(f"delete {what}?", abort=True)


def _given(notes: str | None, labels: Any, metadata: tuple[str, ...]) -> dict[str, Any]:
    given: dict[str, Any] = {} if notes is None else {"notes": notes}
    if labels:
        given["labels"] = [*labels]
    if metadata:
        given["metadata"] = dict(map(_parse_value, metadata))
    return given


def _parse_value(text: str) -> tuple[str, Any]:
    """Return the key and the value of KEY=VALUE. A value that is no JSON is text."""
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise DetError(f"--metadata is {text!r}; give a key and a value, as in accuracy=0.97")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


# The names that Determined's users type.
for _command, _other in ((add_version, "register-version"), (show, "describe")):
    _same = copy.copy(_command)
    _same.hidden = True
    model.add_command(_same, _other)
