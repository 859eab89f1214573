"""Where the files of a checkpoint may be deleted."""

from __future__ import annotations

from det_core.config import ExperimentConfig
from det_core.errors import StorageError
from det_core.hooks import Plugins
from det_core.storage import LocalStorage, Storage

from ..store import Store, storage_of


class Deleter:
    """Deletes checkpoints of one experiment, and records that.

    They are deleted where its configuration keeps them. Checkpoints of an import are deleted in the
    home only: a path in another user's database is no permission to delete there. Neither is a
    uuid, which may be another experiment's.
    """

    def __init__(
        self, store: Store, experiment_id: int, config: ExperimentConfig, plugins: Plugins
    ) -> None:
        self._store = store
        self._root = store.home / "checkpoints"
        self._imported = store.checkpoints.imported(experiment_id)
        self._adopted = store.checkpoints.adopted(experiment_id)
        self._carried = store.checkpoints.carried(experiment_id)
        self._id, self._config, self._plugins = experiment_id, config, plugins
        self._configured: Storage | None = None

    def may_delete(self, uuid: str) -> bool:
        """Return whether a checkpoint may be deleted without being named.

        This home has written its files, or an import has put them into the home. Those that were
        copied from another system may be somebody's last copy: they are deleted by name only.
        """
        return uuid not in self._imported or uuid in self._carried

    def delete(self, uuid: str) -> None:
        """Delete the files of a checkpoint, and record that.

        Raises StorageError if an import's do not lie in the home, and StoreError if a version of a
        model has the checkpoint.
        """
        foreign = uuid in self._imported - self._adopted
        if foreign and not LocalStorage(self._root).exists(uuid):
            raise StorageError(
                f"checkpoint {uuid} came with det import and does not lie in {self._root}: delete"
                " it where it was written"
            )
        with self._store.models.deleting():
            self._store.models.check_free([uuid])
            self._delete_files(uuid, foreign=foreign)
            self._store.checkpoints.mark_deleted(uuid)

    def _delete_files(self, uuid: str, *, foreign: bool) -> None:
        if foreign:
            LocalStorage(self._root).delete(uuid)
            return
        if self._configured is None:
            self._configured = storage_of(self._store, self._id, self._config, self._plugins)
        self._configured.delete(uuid)
