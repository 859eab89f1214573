"""Writes the model registry of a Determined master to that of a home."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from det_core.errors import StoreError
from det_driver.store import CheckpointState, Models, Store

from .configuration import mask_plain
from .history import History
from .scratch import Scratch
from .tally import Tally
from .values import is_true, read_array, read_time

MODELS = "models.json"


def read_models(history: History, scratch: Scratch) -> dict[str, dict[str, Any]]:
    """Return the model registry by name, each model with its versions in order."""
    models: dict[str, dict[str, Any]] = {}
    names = {}
    for row in scratch.records("models"):
        names[row["id"]] = row["name"]
        models[row["name"] or ""] = {**_read_row(row, history), "versions": []}
    for row in scratch.records("model_versions"):
        name = row["model_name"] or names.get(row["model_id"]) or ""
        models.setdefault(name, {"versions": []})["versions"].append(_read_row(row, history))
    for model in models.values():
        model["versions"].sort(key=lambda version: int(version.get("version") or 0))
    masked: dict[str, dict[str, Any]] = mask_plain(models)
    return masked


def keep_models(home: Path, cluster: str, models: Mapping[str, Any]) -> None:
    """Write the registry as it was to a file."""
    new = home / f".{MODELS}"
    new.touch(mode=0o600)
    new.write_text(
        json.dumps({"cluster_id": cluster, "models": models}, indent=1), encoding="utf-8"
    )
    new.replace(home / MODELS)


@contextmanager
def rehearsed_registry(
    store: Store | None, states: Mapping[str, CheckpointState]
) -> Iterator[Models]:
    """Make a copy of a home's registry, which is changed instead of it.

    `states` are those of the checkpoints that would be written, by uuid.
    """

    def state(uuid: str) -> tuple[str, CheckpointState]:
        if uuid in states:
            return uuid, states[uuid]
        if store is None:
            raise StoreError(f"no checkpoint {uuid!r}")
        found = store.checkpoints.get(uuid)
        return found.uuid, found.state

    with tempfile.TemporaryDirectory(prefix="det-migrate-") as place:
        copied = Models(Path(place), readonly=False, state=state)
        if store is not None and store.models.path.exists():
            with (
                closing(sqlite3.connect(f"{store.models.path.as_uri()}?mode=ro", uri=True)) as ours,
                closing(sqlite3.connect(copied.path)) as theirs,
            ):
                ours.backup(theirs)
        with closing(copied):
            yield copied


def register(registry: Models, models: Mapping[str, Mapping[str, Any]], tally: Tally) -> None:
    """Add models with their versions to a registry.

    A version whose checkpoint is not in the home is left out. What is there already stays.
    """
    for name, model in models.items():
        there: set[int] = set()
        try:
            if name in {row.name for row in registry.list(archived=None)}:
                there = {row.version for row in registry.versions(name)}
            else:
                registry.create(name, **_described(model))
                tally.write("models")
        except StoreError as error:
            tally.leave_out("models", "see the notes")
            tally.notes.append(f"model {name!r}: {error}")
            continue
        for version in model["versions"]:
            number = int(version.get("version") or 0)
            if number in there:
                continue
            try:
                registry.add_version(
                    name,
                    version.get("checkpoint_uuid") or "",
                    number=number,
                    created=read_time(version.get("creation_time")),
                    name=version.get("name") or "",
                    notes="\n".join(filter(None, map(version.get, ("comment", "notes")))),
                    labels=read_array(version.get("labels")),
                    metadata=version.get("metadata") or {},
                )
                tally.write("model versions")
            except StoreError as error:
                tally.leave_out("model versions", "see the notes")
                tally.notes.append(f"model {name!r}, version {number}: {error}")


def _described(model: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "description": model.get("description") or "",
        "notes": model.get("notes") or "",
        "labels": read_array(model.get("labels")),
        "metadata": model.get("metadata") or {},
        "archived": is_true(model.get("archived")),
    }


def _read_row(row: Mapping[str, str | None], history: History) -> dict[str, Any]:
    """Return the values of a row of the registry, with the name of its user."""
    found: dict[str, Any] = {name: text for name, text in row.items() if text is not None}
    for name in ("metadata",):
        if name in found:
            found[name] = history.read_json(found[name], f"{name} of a model or version")
    if (user := found.pop("user_id", None)) is not None:
        found["user"] = history.users.get(user, user)
    return found
