"""Whether the code of an experiment may run. That of an import may not until its user allows it."""

from __future__ import annotations

from pathlib import Path

from det_core.errors import StoreError
from det_core.hooks import Plugins
from det_core.storage import LocalStorage, Storage
from det_driver.store._records import CheckpointRow
from det_driver.store._store import Store

FILE = "untrusted"
"""The empty file in the directory of an experiment that came with an import."""


def distrust(directory: Path) -> None:
    """Mark the directory of an experiment, so that nothing of it runs."""
    (directory / FILE).touch()


def is_trusted(store: Store, experiment_id: int) -> bool:
    """Return whether the code and the configuration of an experiment may take effect."""
    return not (store.experiment_dir(experiment_id) / FILE).exists()


def check_trusted(store: Store, experiment_id: int) -> None:
    """Raise StoreError if the code of an experiment may not run."""
    if not is_trusted(store, experiment_id):
        raise StoreError(
            f"experiment {experiment_id} came with det import, and nothing of it has run here: read"
            f" {store.code_dir(experiment_id)} and det show {experiment_id} --config, then allow it"
            f" with det trust {experiment_id}"
        )


def storage_of_checkpoint(store: Store, row: CheckpointRow, plugins: Plugins) -> Storage:
    """Return the storage that a checkpoint is in.

    The configuration of an import names a storage of somebody else, perhaps on another host. It is
    not opened until the experiment is trusted. Raises StoreError for a checkpoint of such an
    experiment that is not in the home.
    """
    experiment_id = store.trials.get(row.trial_id).experiment_id
    root = store.home / "checkpoints"
    if (
        store.experiments.get(experiment_id).outside
        and row.uuid in store.checkpoints.imported(experiment_id)
        and not LocalStorage(root).exists(row.uuid)
    ):
        hosts = {each.id: each.host for each in store.runs.list(row.trial_id)}
        raise StoreError(
            f"checkpoint {row.uuid} is where its script has written it, and not here:"
            f" {row.storage} on {hosts.get(row.run_id) or 'another machine'}"
        )
    if not is_trusted(store, experiment_id):
        home = LocalStorage(root)
        if not home.exists(row.uuid):
            check_trusted(store, experiment_id)
        return home
    return plugins.storage_of(store.experiments.config(experiment_id), root)


def trust(store: Store, experiment_id: int) -> None:
    """Allow the code of an experiment to run."""
    place = store.experiment_dir(store.experiments.get(experiment_id).id) / FILE
    try:
        place.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot remove {place}: {error.strerror}; remove it") from error
