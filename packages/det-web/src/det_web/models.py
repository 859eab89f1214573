"""/api/v1/models: the registry of models, whose versions point to checkpoints."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from det_core.errors import StoreError
from det_driver.client import Model
from det_driver.store import ModelRow, ModelVersionRow, Store

from .endpoints import ApiRequest, Endpoint, Refused
from .shapes import Number

_Text = Annotated[str, Meta(max_length=100_000)]
_Line = Annotated[str, Meta(max_length=1000)]
_Labels = list[Annotated[str, Meta(max_length=200)]]


class Models(Struct):
    """All models by name, archived ones too."""

    models: list[ModelRow]


class Version(Struct):
    """A version of a model, with its checkpoint.

    `experiment` and what follows are null where the checkpoint's experiment is not there any more.
    """

    version: int
    name: str
    notes: str
    labels: tuple[str, ...]
    aliases: tuple[str, ...]
    metadata: dict[str, Any]
    created: float
    uuid: str
    experiment: int | None = None
    trial: int | None = None
    batches: int | None = None
    metric: Number = None
    size: int | None = None
    state: str | None = None


class OneModel(Struct):
    """A model, and its versions, the newest first."""

    model: ModelRow
    versions: list[Version]


class NewModel(Struct, forbid_unknown_fields=True):
    """A model to make, without a version yet."""

    name: _Line
    description: _Text = ""


class ModelChange(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What to change in a model. Fields that are left out stay."""

    name: _Line | None = None
    description: _Text | None = None
    notes: _Text | None = None
    labels: _Labels | None = None
    archived: bool | None = None


class NewVersion(Struct, forbid_unknown_fields=True):
    """A checkpoint, or the beginning of its uuid, to make a version, and aliases to point to it."""

    uuid: _Line
    aliases: _Labels = []
    name: _Line = ""
    notes: _Text = ""


class VersionChange(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What to change in a version. Fields that are left out stay."""

    name: _Line | None = None
    notes: _Text | None = None
    labels: _Labels | None = None


class Alias(Struct, forbid_unknown_fields=True):
    """The version to which an alias shall point. The alias is removed where it is null."""

    version: int | None


def list_(asked: ApiRequest) -> Models:
    """List the models of the registry."""
    if not Store.is_at(asked.home):
        return Models([])
    with asked.store() as store:
        return Models(store.models.list(archived=None))


def create(asked: ApiRequest) -> OneModel:
    """Make a model, without a version yet."""
    given: NewModel = asked.body
    return _read_model(
        asked, asked.client.create_model(given.name, description=given.description).name
    )


def one(asked: ApiRequest) -> OneModel:
    """Return a model with its versions and their checkpoints."""
    return _read_model(asked, _model(asked).name)


def change(asked: ApiRequest) -> OneModel:
    """Change a model's name, description, notes, labels, or whether it is archived."""
    model = _model(asked)
    # What is left out is not null, which no column may be.
    if given := msgspec.to_builtins(asked.body):
        model.edit(**given)
    return _read_model(asked, model.name)


def delete(asked: ApiRequest) -> Models:
    """Delete a model with its versions. The checkpoints stay. Return the models that are left."""
    _model(asked).delete()
    return list_(asked)


def add_version(asked: ApiRequest) -> OneModel:
    """Make a checkpoint the newest version of a model, which keeps it from being deleted."""
    given: NewVersion = asked.body
    model = _model(asked)
    model.add_version(given.uuid, aliases=given.aliases, name=given.name, notes=given.notes)
    return _read_model(asked, model.name)


def change_version(asked: ApiRequest) -> OneModel:
    """Change a version's name, notes or labels."""
    model = _model(asked)
    version = model.get_version(asked.path["version"])
    if given := msgspec.to_builtins(asked.body):
        version.edit(**given)
    return _read_model(asked, model.name)


def delete_version(asked: ApiRequest) -> OneModel:
    """Delete a version to which no alias points. Its checkpoint stays."""
    model = _model(asked)
    model.get_version(asked.path["version"]).delete()
    return _read_model(asked, model.name)


def set_alias(asked: ApiRequest) -> OneModel:
    """Point an alias of a model to a version, or remove it."""
    model, alias = _model(asked), asked.path["alias"]
    if asked.body.version is None:
        model.remove_alias(alias)
    else:
        model.set_alias(alias, asked.body.version)
    return _read_model(asked, model.name)


def _model(asked: ApiRequest) -> Model:
    try:
        return asked.client.get_model(asked.path["model"])
    except StoreError as error:
        raise Refused(404, str(error)) from error


def _read_model(asked: ApiRequest, name: str) -> OneModel:
    with asked.store() as store:
        versions = [_version(store, row) for row in store.models.versions(name)]
        return OneModel(store.models.get(name), versions)


def _version(store: Store, row: ModelVersionRow) -> Version:
    found = Version(
        *(row.version, row.name, row.notes, row.labels, row.aliases, row.metadata, row.created),
        row.uuid,
    )
    # An experiment's directory may have been removed by hand.
    with suppress(StoreError):
        checkpoint = store.checkpoints.get(row.uuid)
        found.experiment = store.trials.get(checkpoint.trial_id).experiment_id
        found.trial, found.batches = checkpoint.trial_id, checkpoint.batches
        found.metric, found.size = checkpoint.metric, checkpoint.size
        found.state = str(checkpoint.state)
    return found


_ONE, _VERSION = "/models/{model}", "/models/{model}/versions/{version}"
ENDPOINTS = (
    Endpoint(method="GET", path="/models", does=list_, response=Models),
    Endpoint(
        method="POST", path="/models", does=create, response=OneModel, body=NewModel, status=201
    ),
    Endpoint(method="GET", path=_ONE, does=one, response=OneModel),
    Endpoint(method="PATCH", path=_ONE, does=change, response=OneModel, body=ModelChange),
    Endpoint(method="DELETE", path=_ONE, does=delete, response=Models),
    Endpoint(
        method="POST",
        path=f"{_ONE}/versions",
        does=add_version,
        response=OneModel,
        body=NewVersion,
        status=201,
    ),
    Endpoint(
        method="PATCH", path=_VERSION, does=change_version, response=OneModel, body=VersionChange
    ),
    Endpoint(method="DELETE", path=_VERSION, does=delete_version, response=OneModel),
    Endpoint(
        method="PUT",
        path=f"{_ONE}/aliases/{{alias}}",
        does=set_alias,
        response=OneModel,
        body=Alias,
    ),
)
"""The endpoints about the registry of models."""
