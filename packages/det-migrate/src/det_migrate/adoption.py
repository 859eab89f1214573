"""Copies the checkpoints of an imported experiment, so that det can restore them and go on."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from det_core.checkpoint import write_checkpoint
from det_core.checkpoint.code import copy_code
from det_core.config import ExperimentConfig, Single, from_json, masked, to_builtins
from det_core.errors import DetError, StorageError, StoreError
from det_core.hooks import Plugins
from det_core.storage import Storage, open_storage
from det_core.support.paths import expand_user
from det_driver.driver import begin_journal
from det_driver.store import NO_JOURNAL, CheckpointRow, CheckpointState, Store

from .configuration import find_plain_secrets, mask_files, mask_plain, storage_url
from .migration import FILE

_TORCH = ("state_dict.pth", "determined/state_dict.pth", "pedl/state_dict.pth", "checkpoint.pt")
_ESTIMATOR = re.compile(r"[^/]+/\d+/saved_model\.pb|model\.ckpt-\d+\.index")
_LOAD_FILE, _LOOP_FILE = "load_data.json", "loop.json"
_POLICY = ("save_experiment_best", "save_trial_best", "save_trial_latest")


@dataclass
class Adopted:
    """The checkpoints that were copied, those that could not be, and whether training can go on."""

    copied: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    """Those that an earlier call has copied."""
    failed: dict[str, str] = field(default_factory=dict)
    """The reason for each that could not be copied."""
    stays: str = ""
    """Why the experiment itself cannot go on. Empty if it can."""


def adopt(
    home: Path, experiment_id: int, *, to: str | None = None, source: str | None = None
) -> Adopted:
    """Copy the checkpoints of an imported experiment to a storage, with a manifest and a position.

    `to` is a directory, `s3://…` or `gs://…`, by default the home's own directory. `source` is
    where the files lie, by default where the experiment's configuration says. The only trial of an
    experiment of PyTorch that has not completed can be resumed afterwards. Nothing is changed at
    the source. Raises StoreError for an experiment that was not imported.
    """
    plugins = Plugins.installed()
    with Store(home) as store, store.lock(experiment_id):
        if not (store.experiment_dir(experiment_id) / FILE).is_file():
            raise StoreError(
                f"experiment {experiment_id} was not imported from Determined: there is no {FILE};"
                " det already has its checkpoints"
            )
        config = from_json(store.experiments.get(experiment_id).config)
        moved = _with_storage(config, to)
        target = plugins.storage_of(moved, home / "checkpoints")
        rows = [
            row
            for row in store.checkpoints.list(experiment_id=experiment_id)
            if row.state is CheckpointState.COMPLETED
        ]
        there, found = store.checkpoints.adopted(experiment_id), Adopted()
        if there and target.url("x") != plugins.storage_of(config, home / "checkpoints").url("x"):
            raise StoreError(
                f"checkpoints of experiment {experiment_id} have been copied to another storage;"
                " name that one with --to"
            )
        for row in rows:
            if row.uuid in there:
                found.present.append(row.uuid)
                continue
            try:
                origin = _origin(row, config, source, plugins, home)
                _copy(store, row, config, origin, target)
                found.copied.append(row.uuid)
            except DetError as error:
                found.failed[row.uuid] = str(error)
        if found.copied:
            # From now on, the checkpoints are looked for in the new place.
            text = json.dumps(masked(moved), allow_nan=False)
            store.experiments.update(experiment_id, config=text)
        found.stays = _make_resumable(store, experiment_id, plugins)
    return found


def _with_storage(config: ExperimentConfig, to: str | None) -> ExperimentConfig:
    """Return a configuration whose checkpoints lie in another storage and are kept as before."""
    data: dict[str, Any] = to_builtins(config)
    policy = {key: (data.get("checkpoint_storage") or {}).get(key) for key in _POLICY}
    kept = {key: value for key, value in policy.items() if value is not None}
    data.pop("checkpoint_storage", None)
    if to is not None:
        data["checkpoint_storage"] = {**_place(to), **kept}
    return from_json(json.dumps(data))


def _place(to: str) -> dict[str, Any]:
    parts = urlsplit(to)
    if parts.scheme in ("s3", "gs") and parts.netloc:
        prefix = {"prefix": parts.path.strip("/")} if parts.path.strip("/") else {}
        kind = "s3" if parts.scheme == "s3" else "gcs"
        return {"type": kind, "bucket": parts.netloc, **prefix}
    if "://" in to:
        raise StorageError(
            f"{to} is no storage; give a directory, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX"
        )
    return {"type": "shared_fs", "host_path": str(expand_user(to).absolute())}


def _origin(
    row: CheckpointRow, config: ExperimentConfig, source: str | None, plugins: Plugins, home: Path
) -> Storage:
    """Return the storage where the files of a checkpoint lie."""
    if source is not None:
        return open_storage(source, home)
    if storage_url(config, row.uuid) == row.storage and config.checkpoint_storage is not None:
        return plugins.storage_of(config, home / "checkpoints")
    place, _, uuid = row.storage.rpartition("/")
    if not place or uuid != row.uuid:
        raise StorageError(
            f"nothing says where the files of checkpoint {row.uuid} lie; name the storage with"
            " --from"
        )
    return open_storage(place.replace("azure://", "abfs://"), home)


def _copy(
    store: Store, row: CheckpointRow, config: ExperimentConfig, origin: Storage, target: Storage
) -> None:
    if origin.url(row.uuid) == target.url(row.uuid):
        raise StorageError(
            f"{origin.url(row.uuid)} is where it lies already; name another storage with --to"
        )
    trial = store.trials.get(row.trial_id)
    framework = framework_of(origin.files(row.uuid))
    facts = {
        "trial_cls_spec": config.entrypoint if isinstance(config.entrypoint, str) else None,
        "hparams": trial.hparams,
        "experiment_config": masked(config),
    }
    validated = (
        {"validated_at": row.batches, "validation": row.validation} if row.validation else {}
    )
    position = {"batches": row.batches, "trial_id": trial.id, **validated}

    def fill(directory: Path) -> None:
        origin.download(row.uuid, directory)
        _describe(directory, facts, store.code_dir(trial.experiment_id))
        (directory / _LOOP_FILE).write_text(json.dumps(position))

    if target.exists(row.uuid):
        # An earlier call was killed between the copy and its record.
        size = sum(target.files(row.uuid).values())
    else:
        manifest = write_checkpoint(
            target,
            fill,
            uuid=row.uuid,
            framework=framework,
            batches=row.batches,
            experiment_id=trial.experiment_id,
            trial_id=trial.id,
            metadata=row.metadata,
        )
        size = sum(file.size for file in manifest.files.values())
    store.checkpoints.adopt(row.uuid, storage=target.url(row.uuid), size=size, framework=framework)


def framework_of(names: Collection[str]) -> str:
    """Return det's name of the framework that wrote a checkpoint, by the names of its files.

    Empty for another one, such as a script of the Core API.
    """
    if any(name in _TORCH for name in names):
        return "torch"
    if any(name.startswith("determined-keras-model") for name in names):
        return "keras"
    if any(_ESTIMATOR.match(name) for name in names):
        return "estimator"
    return "keras" if any(name.endswith("saved_model.pb") for name in names) else ""


def _describe(directory: Path, facts: Mapping[str, Any], code: Path) -> None:
    """Write what is needed to make the trial again, where the checkpoint lacks it.

    Secrets of the configuration that the checkpoint holds are masked.
    """
    own = _read(directory / _LOAD_FILE) or _read(directory / "metadata.json")
    secrets = find_plain_secrets(own)
    known = {name: value for name, value in mask_plain(own).items() if value is not None}
    (directory / _LOAD_FILE).write_text(json.dumps({**facts, **known}, indent=1))
    if not (directory / "code").is_dir() and code.is_dir():
        copy_code(code, directory / "code")
    mask_files(directory / "code", secrets)
    for file in (directory / "code").rglob("*.y*ml"):
        # In the experiment's code, secrets of its configuration are masked already.
        if (masked_file := code / file.relative_to(directory / "code")).is_file():
            shutil.copyfile(masked_file, file)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _make_resumable(store: Store, experiment_id: int, plugins: Plugins) -> str:
    """Let the only trial of an experiment go on. Return why it cannot, or an empty text."""
    experiment = store.experiments.get(experiment_id)
    if experiment.journal != NO_JOURNAL:
        return ""
    config, trials = from_json(experiment.config), store.trials.list(experiment_id)
    searcher = config.searcher
    if len(trials) == 1 and isinstance(searcher, Single):
        latest = trials[0].latest_checkpoint
        if latest not in store.checkpoints.adopted(experiment_id):
            return "no checkpoint of its trial was copied"
        framework = store.checkpoints.get(latest).framework
        if framework != "torch":
            if not framework:
                return "no framework that det knows wrote its checkpoint"
            return f"of a checkpoint of {framework}, det reads the weights only"
        if searcher.max_length is None or not config.entrypoint:
            return "its configuration does not say what to train, or how long"
        # A single searcher draws the hyperparameters, and would draw others than Determined drew.
        fixed = to_builtins(config) | {"hyperparameters": trials[0].hparams}
        config = from_json(json.dumps(fixed))
        store.experiments.update(experiment_id, config=json.dumps(masked(config), allow_nan=False))
    try:
        begin_journal(store, experiment_id, config, plugins)
    except StoreError as error:
        return str(error)
    return ""
