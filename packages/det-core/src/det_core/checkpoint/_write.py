"""Write a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..manifest import METADATA, Manifest, draft, encode, metadata_json
from ..storage import MANIFEST, Storage
from ._digest import OWN, entries, names, settle


def write_checkpoint(
    storage: Storage,
    write: Callable[[Path], object],
    *,
    framework: str,
    batches: int,
    uuid: str | None = None,
    experiment_id: int | None = None,
    trial_id: int | None = None,
    framework_version: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> Manifest:
    """Let `write` fill a directory, add the manifest, publish it, and return the manifest.

    `batches` is the trial's position, `framework` the name of its adapter's record; a missing `uuid` is made. The names
    `manifest.json` and `metadata.json` are det's: what `write` leaves there is replaced. When anything raises, nothing
    is published.
    """
    manifest = draft(
        framework=framework,
        batches=batches,
        uuid=uuid,
        experiment_id=experiment_id,
        trial_id=trial_id,
        framework_version=framework_version,
        metadata=metadata,
    )
    with storage.store(manifest.uuid) as directory:
        write(directory)
        settle(directory)
        found = entries(directory, (name for name in names(directory) if name not in OWN))
        return describe(directory, manifest, found)


def describe(directory: Path, manifest: Manifest, files: Mapping[str, Any]) -> Manifest:
    """Write `metadata.json` and `manifest.json` into `directory`, and return the manifest with its `files`."""
    directory.joinpath(METADATA).write_bytes(metadata_json(manifest))
    files = dict(sorted({**files, **entries(directory, [METADATA])}.items()))
    manifest = msgspec.structs.replace(manifest, files=files)
    directory.joinpath(MANIFEST).write_bytes(encode(manifest))
    return manifest
