"""Models of the registry, and their versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from ..store import ModelChanges, ModelRow, ModelVersionRow, VersionChanges
from . import _calls
from ._checkpoint import Checkpoint
from ._home import AnyHome


class Model:
    """A model of the registry, whose versions point to checkpoints.

    Each property reads the row again. `created` is in unix seconds.
    """

    def __init__(self, home: AnyHome, row: ModelRow) -> None:
        self._home = home
        self.id = row.id
        self.name = row.name
        self.created = row.created

    @property
    def description(self) -> str:
        """What it is for."""
        return self._row.description

    @property
    def notes(self) -> str:
        """Notes of any length."""
        return self._row.notes

    @property
    def labels(self) -> list[str]:
        """The labels that users gave."""
        return [*self._row.labels]

    @property
    def metadata(self) -> dict[str, Any]:
        """Values that users gave, by name."""
        return self._row.metadata

    @property
    def archived(self) -> bool:
        """Whether listings hide it."""
        return self._row.archived

    @property
    def updated(self) -> float:
        """When it was changed or got a version, in unix seconds."""
        return self._row.updated

    @property
    def aliases(self) -> dict[str, int]:
        """The number of the version of each alias."""
        return self._row.aliases

    def edit(self, **changes: Unpack[ModelChanges]) -> None:
        """Change its name, description, notes, labels, metadata, or whether it is archived.

        What is given replaces what it had. Raises StoreError for a name that is taken.
        """
        self.name = self._home.call(_calls.update_model, self.name, changes).name

    def add_version(
        self,
        checkpoint: str | Checkpoint,
        *,
        aliases: Iterable[str] = (),
        **given: Unpack[VersionChanges],
    ) -> ModelVersion:
        """Add a version that points to a checkpoint, or to one whose uuid is given.

        The checkpoint is kept as long as the version exists. `given` are name, notes, labels and
        metadata. Raises StoreError for a checkpoint whose files are not complete.
        """
        uuid = checkpoint if isinstance(checkpoint, str) else checkpoint.uuid
        made = self._home.call(_calls.add_version, self.name, uuid, [*aliases], given)
        return ModelVersion(self._home, made)

    def list_versions(self) -> list[ModelVersion]:
        """Return its versions, the newest first."""
        rows = self._home.call(_calls.versions, self.name)
        return [ModelVersion(self._home, row) for row in rows]

    def get_version(self, version: int | str | None = None) -> ModelVersion:
        """Return a version by its number or an alias, by default the newest.

        Raises StoreError if there is none.
        """
        return ModelVersion(self._home, self._home.call(_calls.version, self.name, version))

    def set_alias(self, alias: str, version: int | str | None) -> ModelVersion:
        """Point an alias to a version, also if it pointed to another one before."""
        row = self._home.call(_calls.set_alias, self.name, alias, version)
        return ModelVersion(self._home, row)

    def remove_alias(self, alias: str) -> None:
        """Remove an alias. Raises StoreError if there is none of this name."""
        self._home.call(_calls.remove_alias, self.name, alias)

    def delete(self) -> None:
        """Delete it with its versions and aliases. Its checkpoints are not deleted."""
        self._home.call(_calls.delete_model, self.name)

    @property
    def _row(self) -> ModelRow:
        return self._home.call(_calls.model, self.name)

    def __repr__(self) -> str:
        return f"Model(id={self.id}, name={self.name!r})"


class ModelVersion:
    """A version of a model: a checkpoint with a number, which counts from 1.

    Each property reads the row again. `created` is in unix seconds.
    """

    def __init__(self, home: AnyHome, row: ModelVersionRow) -> None:
        self._home = home
        self.id = row.id
        self.model_name = row.model
        self.version = row.version
        self.uuid = row.uuid
        self.created = row.created

    @property
    def name(self) -> str:
        """The name that users gave."""
        return self._row.name

    @property
    def notes(self) -> str:
        """Notes of any length."""
        return self._row.notes

    @property
    def labels(self) -> list[str]:
        """The labels that users gave."""
        return [*self._row.labels]

    @property
    def metadata(self) -> dict[str, Any]:
        """Values that users gave, by name."""
        return self._row.metadata

    @property
    def aliases(self) -> list[str]:
        """The aliases that point to it."""
        return [*self._row.aliases]

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint to which it points."""
        return Checkpoint(self._home, self._home.call(_calls.checkpoint, self.uuid))

    def edit(self, **changes: Unpack[VersionChanges]) -> None:
        """Change its name, notes, labels or metadata. What is given replaces what it had."""
        self._home.call(_calls.update_version, self.model_name, self.version, changes)

    def delete(self) -> None:
        """Delete it. Its checkpoint is not deleted.

        Raises StoreError if an alias points to it.
        """
        self._home.call(_calls.delete_version, self.model_name, self.version)

    @property
    def _row(self) -> ModelVersionRow:
        return self._home.call(_calls.version, self.model_name, self.version)

    def __repr__(self) -> str:
        return f"ModelVersion(model_name={self.model_name!r}, version={self.version})"
