"""Whether the code of an experiment may run. That of an import may not until its user allows it."""

from __future__ import annotations

from pathlib import Path

from det_core.config import ExperimentConfig
from det_core.errors import StoreError
from det_core.hooks import Plugins
from det_core.storage import LocalStorage, Storage
from det_driver.accounts import (
    Account,
    AccountStorage,
    account_of,
    check_allowed,
    runs_as_users,
)
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
    if (
        store.experiments.get(experiment_id).outside
        and row.uuid in store.checkpoints.imported(experiment_id)
        and not LocalStorage(store.home / "checkpoints").exists(row.uuid)
    ):
        hosts = {each.id: each.host for each in store.runs.list(row.trial_id)}
        raise StoreError(
            f"checkpoint {row.uuid} is where its script has written it, and not here:"
            f" {row.storage} on {hosts.get(row.run_id) or 'another machine'}"
        )
    if not is_trusted(store, experiment_id):
        home = LocalStorage(store.home / "checkpoints")
        if not home.exists(row.uuid):
            check_trusted(store, experiment_id)
        return home
    return storage_of(store, experiment_id, store.experiments.config(experiment_id), plugins)


def storage_of(
    store: Store, experiment_id: int, config: ExperimentConfig, plugins: Plugins
) -> Storage:
    """Return the storage of an experiment, with the rights of the user as whom its code runs."""
    if (account := account_in(store, experiment_id)) is not None:
        return AccountStorage(account, config)
    return plugins.storage_of(config, store.home / "checkpoints")


def checkpoint_root(store: Store, experiment_id: int) -> Path:
    """Return where the checkpoints of an experiment are whose configuration does not say it."""
    account = account_in(store, experiment_id)
    return account.checkpoints if account is not None else store.home / "checkpoints"


def account_in(store: Store, experiment_id: int) -> Account | None:
    """Return the account as which the code of an experiment runs.

    None where all code runs as whoever starts it. Raises DetError if the account is missing.
    """
    return account_of(store.home, store.experiment_dir(experiment_id))


def refuse_code(store: Store, experiment_id: int) -> None:
    """Raise DetError if the code of an experiment may run as its user only, and not here."""
    if (account := account_in(store, experiment_id)) is not None:
        raise StoreError(
            f"the code of experiment {experiment_id} runs as {account.name} only, and would run as"
            " root here; download the checkpoint, and use it as another user"
        )


def check_code(store: Store, experiment_id: int) -> None:
    """Raise DetError if the code of an experiment may not run as the home's server runs code."""
    if account_in(store, experiment_id) is not None:
        found = store.experiments.get(experiment_id)
        check_allowed(store.experiments.config(experiment_id), found.engine)


def trust(store: Store, experiment_id: int) -> None:
    """Allow the code of an experiment to run."""
    place = store.experiment_dir(store.experiments.get(experiment_id).id) / FILE
    if place.exists() and runs_as_users(store.home):
        raise StoreError(
            f"experiment {experiment_id} came with det import, and code in {store.home} runs as its"
            " owners on this server only; fork it, or run its code as an experiment of your own"
        )
    try:
        place.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot remove {place}: {error.strerror}; remove it") from error
