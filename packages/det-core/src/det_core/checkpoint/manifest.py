"""The manifest of a checkpoint: what it holds and where it comes from."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec

from ..errors import CheckpointDamaged, CheckpointError
from ..support.installation import own_version
from ..support.origin import brief

FORMAT = 1
METADATA = "metadata.json"
WAY_OUT = "go on from an older one: det resume EXPERIMENT --checkpoint UUID"


class FileEntry(msgspec.Struct, frozen=True):
    """One file: its size in bytes and the SHA-256 of its content, in hexadecimal."""

    size: int
    digest: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds and where it comes from.

    - `batches`: the trial's position.
    - `versions`: those of det-core, Python and the framework.
    - `environment`: the digest of the interpreter's environment, if it was made for the experiment.
    - `origin`: where it was written: the machine, its devices, a digest of the packages installed
      there, and the commit of the code.
    - `metadata`: the user's, plain JSON.
    - `files`: every file except the manifest itself.
    """

    uuid: str
    framework: str
    batches: int
    format: int = FORMAT
    created: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    experiment_id: int | None = None
    trial_id: int | None = None
    environment: str | None = None
    versions: Mapping[str, str] = {}
    origin: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    files: Mapping[str, FileEntry] = {}


of_plain: Callable[[Any], Manifest] = partial(
    msgspec.convert, type=msgspec.json.Decoder(Manifest).type
)


def draft(
    *,
    framework: str,
    batches: int,
    uuid: str | None = None,
    experiment_id: int | None = None,
    trial_id: int | None = None,
    environment: str | None = None,
    commit: str | None = None,
    framework_version: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> Manifest:
    """Return the manifest of a checkpoint that has no files yet.

    `batches` is the trial's position, `framework` the name of its adapter's record. Without a
    `uuid`, one is made.
    """
    return Manifest(
        uuid=uuid or str(uuid4()),
        framework=framework,
        batches=batches,
        experiment_id=experiment_id,
        trial_id=trial_id,
        environment=environment,
        versions={"det-core": own_version(), "python": platform.python_version()}
        | ({framework: framework_version} if framework_version else {}),
        origin=brief() | ({"commit": commit} if commit else {}),
        metadata=plain(metadata or {}),
    )


def plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as JSON keeps it: tuples become lists, NaN becomes null."""
    try:
        value: dict[str, Any] = json.loads(msgspec.json.encode(metadata))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CheckpointError(
            f"checkpoint metadata must be plain JSON: {error}; convert it first"
        ) from error
    return value


def metadata_json(manifest: Manifest) -> bytes:
    """Encode `metadata.json`, which readers of Determined's layout expect. The user's keys win."""
    known = {
        "steps_completed": manifest.batches,
        "framework": "-".join(
            filter(None, (manifest.framework, manifest.versions.get(manifest.framework)))
        ),
        "det_version": manifest.versions["det-core"],
    }
    return _dump({**known, **manifest.metadata})


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest, with a seal that shows whether the manifest was altered."""
    try:
        document = json.loads(msgspec.json.encode(manifest))
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"checkpoint {manifest.uuid}: {error.object!r} is not UTF-8; rename that file"
        ) from error
    return _dump({**document, "seal": _seal(document)})


def decode(data: bytes, uuid: str) -> Manifest:
    """Decode the manifest of checkpoint `uuid`. Raises CheckpointError if it is not as written."""
    try:
        document = json.loads(data)
        newer = document["format"] > FORMAT
        sealed = document.pop("seal") == _seal(document)
        if not newer and sealed:
            manifest = of_plain(document)
            if manifest.uuid != uuid:
                raise CheckpointError(
                    f"checkpoint {uuid}: its manifest is that of {manifest.uuid}; give the"
                    " directory that name again"
                )
            return manifest
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointDamaged(
            f"checkpoint {uuid}: manifest.json cannot be read ({reason}); {WAY_OUT}"
        ) from error
    if newer:
        found = document["format"]
        raise CheckpointError(
            f"checkpoint {uuid} has format {found}, and this det reads {FORMAT}; upgrade det"
        )
    raise CheckpointDamaged(
        f"checkpoint {uuid}: manifest.json was altered: its seal does not match; {WAY_OUT}"
    )


def _seal(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _dump(document: Mapping[str, Any]) -> bytes:
    return msgspec.json.format(json.dumps(document).encode(), indent=1) + b"\n"
