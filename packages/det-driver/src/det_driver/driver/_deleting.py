"""Where the files of a checkpoint may be deleted."""

from __future__ import annotations

from det_core.config import ExperimentConfig
from det_core.errors import StorageError
from det_core.hooks import Plugins
from det_core.storage import LocalStorage, Storage

from ..store import Store


class Deleter:
    """Deletes checkpoints of one experiment, and records that.

    They are deleted where its configuration keeps them. Checkpoints of an import are deleted in the
    home only: a path in another user's database is no permission to delete there.
    """

    def __init__(
        self, store: Store, experiment_id: int, config: ExperimentConfig, plugins: Plugins
    ) -> None:
        self._store = store
        self._root = store.home / "checkpoints"
        self._imported = store.checkpoints.imported(experiment_id)
        self._adopted = store.checkpoints.adopted(experiment_id)
        self._config, self._plugins = config, plugins
        self._configured: Storage | None = None

    def may_delete(self, uuid: str) -> bool:
        """Return whether a checkpoint may be deleted without being named.

        This home has written its files, or an import has put them into the home. Those that were
        copied from another system may be somebody's last copy: they are deleted by name only.
        """
        if uuid in self._adopted:
            return False
        return uuid not in self._imported or LocalStorage(self._root).exists(uuid)

    def delete(self, uuid: str) -> None:
        """Delete the files of a checkpoint, and record that.

        Raises StorageError if they do not belong to this home, and StoreError if a version of a
        model has the checkpoint.
        """
        if uuid not in self._adopted and not self.may_delete(uuid):
            raise StorageError(
                f"checkpoint {uuid} came with det import and does not lie in {self._root}: delete"
                " it where it was written"
            )
        with self._store.models.deleting():
            self._store.models.check_free([uuid])
            self._delete_files(uuid)
            self._store.checkpoints.mark_deleted(uuid)

    def _delete_files(self, uuid: str) -> None:
        if uuid in self._imported - self._adopted:
            LocalStorage(self._root).delete(uuid)
            return
        if self._configured is None:
            self._configured = self._plugins.storage_of(self._config, self._root)
        self._configured.delete(uuid)
