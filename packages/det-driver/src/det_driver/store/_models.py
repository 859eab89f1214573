"""The model registry of a home: models, their versions, and aliases that point to versions.

A version points to a checkpoint of an experiment of the home. Nothing deletes that checkpoint
while the version exists.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, Unpack

import msgspec

from det_core.errors import StoreError, did_you_mean
from det_driver.store._database import BUSY_SECONDS, Database
from det_driver.store._records import CheckpointState, ModelRow, ModelVersionRow
from det_driver.store._schema import MODELS, assignments, convert, dump, load, load_object

FILE = "models.db"
LOCK = "models.lock"
LATEST = "latest"
PREFIX = "model:"
LONGEST_NAME = 128
_SHOWN = 40

_MODEL = """
SELECT id, name, description, notes, labels, metadata, archived, created, updated,
    (SELECT count(*) FROM versions WHERE model_id = models.id),
    (SELECT max(version) FROM versions WHERE model_id = models.id),
    (SELECT json_group_object(alias, version) FROM aliases WHERE model_id = models.id)
FROM models
"""
_VERSION = """
SELECT v.id, v.model_id, m.name, v.version, v.uuid, v.name, v.notes, v.labels, v.metadata,
    (SELECT json_group_array(alias) FROM aliases a WHERE a.model_id = v.model_id
        AND a.version = v.version),
    v.created, v.updated
FROM versions v JOIN models m ON m.id = v.model_id
"""
_ModelValues = tuple[int, str, str, str, str, str, int, float, float, int, int | None, str]
_VersionValues = tuple[int, int, str, int, str, str, str, str, str, str, float, float]
_texts = msgspec.json.Decoder(tuple[str, ...])
_numbers = msgspec.json.Decoder(dict[str, int])


class ModelChanges(TypedDict, total=False):
    """What can be changed in a model."""

    name: str
    description: str
    notes: str
    labels: Sequence[str]
    metadata: Mapping[str, Any]
    archived: bool


class VersionChanges(TypedDict, total=False):
    """What can be changed in a version."""

    name: str
    notes: str
    labels: Sequence[str]
    metadata: Mapping[str, Any]


class _ModelColumns(ModelChanges):
    updated: float


class _VersionColumns(VersionChanges):
    updated: float


class Models:
    """The models of a home, in `<home>/models.db`. The first model makes the file.

    Each change is committed and synced to the disk when its method returns. `state` returns the
    whole uuid and the state of a checkpoint.
    """

    def __init__(
        self, home: Path, readonly: bool, state: Callable[[str], tuple[str, CheckpointState]]
    ) -> None:
        self.path = home / FILE
        self._readonly = readonly
        self._state = state
        self._database: Database | None = None
        self._locked = False

    def create(self, name: str, /, **given: Unpack[ModelChanges]) -> ModelRow:
        """Make a model. Raises StoreError for a name that is taken or not allowed."""
        check_name("model", name)
        now = time.time()
        with self._writing() as database, _unique(name):
            database.run(
                "INSERT INTO models (name, description, notes, labels, metadata, created, updated)"
                " VALUES (?, '', '', '[]', '{}', ?, ?)",
                (name, now, now),
            )
            self._change(database, "models", given, "name = ?", (name,))
        return self.get(name)

    def list(self, *, archived: bool | None = False) -> list[ModelRow]:
        """Return the models by name. `archived` None means all."""
        wanted = [archived] if archived is not None else [False, True]
        return [row for row in self._models("ORDER BY name") if row.archived in wanted]

    def get(self, name: str) -> ModelRow:
        """Return the model with this name. Raises StoreError if there is none."""
        if found := self._models("WHERE name = ?", (name,)):
            return found[0]
        meant = did_you_mean(name, [row.name for row in self._models("ORDER BY name")])
        raise StoreError(f"no model {_cut(name)}{meant or '; det model list --all shows all'}")

    def update(self, name: str, /, **changes: Unpack[ModelChanges]) -> ModelRow:
        """Change a model. A new name must be free."""
        new = changes.get("name", name)
        check_name("model", new)
        id = self.get(name).id
        with self._writing() as database, _unique(new):
            if not self._change(database, "models", changes, "id = ?", (id,)):
                raise StoreError(f"model {_cut(name)} has just been deleted")
        return self.get(new)

    def delete(self, name: str) -> None:
        """Delete a model with its versions and aliases. The checkpoints stay."""
        id = self.get(name).id
        with self._writing() as database:
            database.run("DELETE FROM models WHERE id = ?", (id,))

    def add_version(
        self,
        name: str,
        uuid: str,
        /,
        *,
        aliases: Iterable[str] = (),
        number: int | None = None,
        created: float | None = None,
        **given: Unpack[VersionChanges],
    ) -> ModelVersionRow:
        """Add a version for a checkpoint, by its uuid or the beginning of it.

        Versions count from 1, and numbers of deleted ones are not used again. A history from
        elsewhere gives the `number`, which must be greater than that of the newest version, and the
        time (Unix seconds). Raises StoreError for a checkpoint whose files are not complete, and
        one that the model has already.
        """
        aliases = list(dict.fromkeys(aliases))
        for alias in aliases:
            check_name("alias", alias)
        model = self.get(name)
        with _lock(self.path.with_name(LOCK), fcntl.LOCK_EX):
            # Nothing deletes a checkpoint meanwhile.
            uuid = self._complete(uuid)
            with self._writing() as database:
                if held := database.row(
                    "SELECT version FROM versions WHERE model_id = ? AND uuid = ?", (model.id, uuid)
                ):
                    raise StoreError(
                        f"checkpoint {uuid} is version {held[0]} of model {_cut(name)} already"
                    )
                now = time.time()
                row = database.row("SELECT last_version FROM models WHERE id = ?", (model.id,))
                if row is None:
                    raise StoreError(f"model {_cut(name)} has just been deleted")
                version = row[0] + 1 if number is None else number
                if version <= row[0]:
                    raise StoreError(
                        f"model {_cut(name)} has a version {row[0]}, so none becomes {version}"
                    )
                database.run(
                    "UPDATE models SET last_version = ?, updated = ? WHERE id = ?",
                    (version, now, model.id),
                )
                database.run(
                    "INSERT INTO versions (model_id, version, uuid, name, notes, labels, metadata,"
                    " created, updated) VALUES (?, ?, ?, '', '', '[]', '{}', ?, ?)",
                    (model.id, version, uuid, now if created is None else created, now),
                )
                self._change(
                    database, "versions", given, "model_id = ? AND version = ?", (model.id, version)
                )
                for alias in aliases:
                    _point(database, model.id, alias, version)
        return self._version(model, version)

    def versions(self, name: str) -> Sequence[ModelVersionRow]:
        """Return the versions of a model, the newest first."""
        return self._versions("WHERE v.model_id = ? ORDER BY v.version DESC", (self.get(name).id,))

    def version(self, name: str, version: int | str | None = None) -> ModelVersionRow:
        """Return a version of a model by its number or an alias.

        None and "latest" mean the newest. Raises StoreError if there is none.
        """
        return self._version(self.get(name), version)

    def update_version(
        self, name: str, version: int | str | None, /, **changes: Unpack[VersionChanges]
    ) -> ModelVersionRow:
        """Change a version."""
        found = self.version(name, version)
        with self._writing() as database:
            if not self._change(database, "versions", changes, "id = ?", (found.id,)):
                raise StoreError(
                    f"version {found.version} of model {_cut(name)} has just been deleted"
                )
        return self.version(name, found.version)

    def delete_version(self, name: str, version: int | str | None) -> ModelVersionRow:
        """Delete a version and return what it was. Its checkpoint stays.

        Raises StoreError if an alias points to it.
        """
        found = self.version(name, version)
        with self._writing() as database:
            aliases = database.rows(
                "SELECT alias FROM aliases WHERE model_id = ? AND version = ? ORDER BY alias",
                (found.model_id, found.version),
            )
            if aliases:
                raise StoreError(
                    f"version {found.version} of model {_cut(name)} has the alias"
                    f" {_cut(aliases[0][0])}; point that to another version, or remove it: det"
                    " model alias --remove"
                )
            database.run("DELETE FROM versions WHERE id = ?", (found.id,))
        return found

    def set_alias(self, name: str, alias: str, version: int | str | None) -> ModelVersionRow:
        """Point an alias of a model to a version, also if it pointed to another one."""
        check_name("alias", alias)
        found = self.version(name, version)
        with self._writing() as database:
            try:
                _point(database, found.model_id, alias, found.version)
            except sqlite3.IntegrityError:
                raise StoreError(
                    f"version {found.version} of model {_cut(name)} has just been deleted"
                ) from None
        return self.version(name, found.version)

    def remove_alias(self, name: str, alias: str) -> None:
        """Remove an alias of a model. Raises StoreError if there is none of this name."""
        model = self.get(name)
        with self._writing() as database:
            if not database.run(
                "DELETE FROM aliases WHERE model_id = ? AND alias = ?", (model.id, alias)
            ):
                raise _no_version(model, alias)

    def refer(self, reference: str) -> ModelVersionRow:
        """Return the version that `NAME@ALIAS`, `NAME/VERSION` or `NAME` means.

        It may begin with `model:`.
        """
        name, sign, version = _split(reference.removeprefix(PREFIX))
        if sign and not version:
            raise StoreError(f"{_cut(reference)} names no version; give NAME@ALIAS or NAME/VERSION")
        model = self.get(name)
        if sign == "@" and version != LATEST and version not in model.aliases:
            raise _no_version(model, version)
        return self._version(model, version or None)

    def checkpoints(self) -> set[str]:
        """Return the uuids of the checkpoints of all versions."""
        if (database := self._reading()) is None:
            return set()
        return {uuid for (uuid,) in database.rows("SELECT uuid FROM versions")}

    def check_free(self, uuids: Iterable[str]) -> None:
        """Raise StoreError, which names the version, if a version has one of these checkpoints."""
        if (database := self._reading()) is None:
            return
        rows = database.rows(
            "SELECT v.uuid, v.version, m.name FROM versions v JOIN models m ON m.id = v.model_id"
            " WHERE v.uuid IN (SELECT value FROM json_each(?)) ORDER BY v.id LIMIT 1",
            (dump([*uuids]),),
        )
        for uuid, version, name in rows:
            raise StoreError(
                f"checkpoint {uuid} is version {version} of model {_cut(name)}, and is kept for it;"
                f" delete that first: det model delete {shlex.quote(f'{name}/{version}')}"
            )

    @contextmanager
    def deleting(self) -> Iterator[None]:
        """Let no version be added inside, so that checkpoints can be tested and deleted."""
        if self._locked:
            yield
            return
        with _lock(self.path.with_name(LOCK), fcntl.LOCK_SH):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def _complete(self, uuid: str) -> str:
        """Return the whole uuid of a checkpoint whose files are complete."""
        whole, state = self._state(uuid)
        if state is not CheckpointState.COMPLETED:
            raise StoreError(
                f"checkpoint {whole} is {state.lower().replace('_', ' ')}; a version needs one that"
                " is complete"
            )
        return whole

    def _version(self, model: ModelRow, version: int | str | None) -> ModelVersionRow:
        number = model.latest if version in (None, LATEST) else model.aliases.get(str(version))
        if number is None and str(version).isascii() and str(version).isdecimal():
            # SQLite's numbers have at most 18 digits, and no model has that many versions.
            number = int(str(version)[:18])
        found = self._versions("WHERE v.model_id = ? AND v.version = ?", (model.id, number))
        if not found:
            raise _no_version(model, version)
        return found[0]

    def _models(self, where: str, parameters: Sequence[Any] = ()) -> Sequence[ModelRow]:
        if (database := self._reading()) is None:
            return []
        rows = database.typed(_ModelValues, f"{_MODEL} {where}", parameters)
        with database.decoding():
            return [
                ModelRow(
                    *(id, name, description, notes, _read_texts(labels), load_object(metadata)),
                    *(bool(archived), created, updated, count, latest, _read_aliases(aliases)),
                )
                for id, name, description, notes, labels, metadata, archived, created, updated, (
                    count
                ), latest, aliases in rows
            ]

    def _versions(self, where: str, parameters: Sequence[Any]) -> Sequence[ModelVersionRow]:
        if (database := self._reading()) is None:
            return []
        rows = database.typed(_VersionValues, f"{_VERSION} {where}", parameters)
        with database.decoding():
            return [
                ModelVersionRow(
                    *(
                        *row[:7],
                        _read_texts(row[7]),
                        load_object(row[8]),
                        _read_texts(row[9]),
                        *row[10:],
                    )
                )
                for row in rows
            ]

    def _change(
        self,
        database: Database,
        table: str,
        changes: Mapping[str, Any],
        where: str,
        parameters: Sequence[Any],
    ) -> int:
        values = {**changes, "updated": time.time()}
        labels = values.get("labels", ())
        texts = [values.get(name, "") for name in ("name", "description", "notes")]
        for text in (*texts, *labels):
            if not isinstance(text, str):
                raise StoreError(f"{text!r:.80} is no text, as names, notes and labels are")
        for label in labels:
            check_name("label", label, within=())
        if "labels" in values:
            values["labels"] = dump([*dict.fromkeys(labels)])
        if "metadata" in values:
            try:
                values["metadata"] = dump(dict(values["metadata"]))
            except (TypeError, ValueError) as error:
                raise StoreError(f"metadata cannot be written as JSON: {error}") from error
        allowed = _ModelColumns if table == "models" else _VersionColumns
        text, given = assignments(values, allowed)
        # Names of tables and columns are constants of ours; values are parameters.
        sql = f"UPDATE {table} SET {text} WHERE {where}"  # nosec B608
        return database.run(sql, (*given, *parameters))

    def _reading(self) -> Database | None:
        """Return the database, or None if the home has none."""
        if self._database is None and self.path.is_file():
            self._database = self._open()
        return self._database

    @contextmanager
    def _writing(self) -> Iterator[Database]:
        """Return the database in a transaction, which is on the disk when the context ends."""
        if self._readonly:
            raise StoreError(f"{self.path} was opened for reading only; open a Store to change it")
        if self._database is None:
            self._database = self._open()
        with self._database.transaction():
            yield self._database

    def _open(self) -> Database:
        # A reader completes a file whose maker was killed, where it can.
        readonly = not os.access(self.path.parent, os.W_OK)
        database = Database(self.path, MODELS, readonly=readonly)
        if not readonly:
            # Changes are rare, and a machine that loses its power must not take one back.
            database.rows("PRAGMA synchronous = FULL")
        return database


def is_reference(text: str) -> bool:
    """Return whether a text names a version of a model, and not a checkpoint's uuid."""
    return text.startswith(PREFIX) or "@" in text or "/" in text


def check_name(kind: str, name: str, within: Iterable[str] = "/@:") -> None:
    """Raise StoreError for a name that is not allowed for a model, an alias or a label.

    References and tables contain these names. Digits alone are the number of a version or model.
    """
    reason = ""
    if not name.strip():
        reason = "is empty"
    elif len(name) > LONGEST_NAME:
        reason = f"has {len(name)} characters, more than {LONGEST_NAME}"
    elif not name.isprintable():
        reason = "contains a character that cannot be printed"
    elif name != name.strip():
        reason = "begins or ends with a space"
    elif found := next((sign for sign in within if sign in name), None):
        reason = f"contains {found!r}, which references need"
    elif within and name.isdecimal():
        reason = "consists of digits, like a number"
    elif kind == "alias" and name == LATEST:
        reason = "means the newest version already"
    if reason:
        raise StoreError(f"the {kind} {_cut(name)} {reason}; choose another one")


def _split(reference: str) -> tuple[str, str, str]:
    sign = next((each for each in "@/" if each in reference), "")
    if not sign:
        return reference, "", ""
    name, _, version = reference.partition(sign)
    return name, sign, version


def _cut(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…")


def _read_texts(text: str) -> tuple[str, ...]:
    found: tuple[str, ...] = convert(load(text), _texts.type)
    return found


def _read_aliases(text: str) -> dict[str, int]:
    return dict(sorted(convert(load(text), _numbers.type).items()))


def _point(database: Database, model_id: int, alias: str, version: int) -> None:
    database.run(
        "INSERT INTO aliases (model_id, alias, version) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET"
        " version = excluded.version",
        (model_id, alias, version),
    )


def _no_version(model: ModelRow, version: int | str | None) -> StoreError:
    if not model.versions:
        return StoreError(
            f"model {_cut(model.name)} has no version yet; add one: det model add-version NAME UUID"
        )
    known = [f"versions up to {model.latest}"]
    if model.aliases:
        known.append(f"aliases {', '.join(map(_cut, model.aliases))}")
    return StoreError(
        f"model {_cut(model.name)} has no version or alias {_cut(str(version))}; it has"
        f" {' and '.join(known)}"
    )


@contextmanager
def _unique(name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise StoreError(
            f"there is a model {_cut(name)} already; choose another name, or see det model show"
        ) from error


@contextmanager
def _lock(path: Path, kind: int) -> Iterator[None]:
    """Hold the lock file of the registry, exclusive or shared.

    Raises StoreError if others hold it for too long.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"cannot lock {path}: {error.strerror}; choose a home that you can write to"
        ) from error
    try:
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{path} is locked by processes that delete checkpoints; try again later"
                    ) from None
            time.sleep(0.01)
        yield
    finally:
        os.close(file)
