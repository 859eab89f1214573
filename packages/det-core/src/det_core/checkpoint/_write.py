"""Write a checkpoint, from one process or from several ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ..errors import CheckpointError
from ..manifest import METADATA, FileEntry, Manifest, draft, encode, metadata_json
from ..storage import MANIFEST, Selector, Storage
from ._read import OWN, entries, names, settle
from ._shards import directory_id, merge_metadata, plan_shards, sources


def write_checkpoint(storage: Storage, write: Callable[[Path], object], **facts: Any) -> Manifest:
    """Let `write` fill a directory, add the manifest, publish it, and return the manifest.

    The `facts` are those of `manifest.draft`. The names `manifest.json` and `metadata.json` are det's: what `write` leaves
    there is replaced. When anything raises, nothing is published.
    """
    manifest = draft(**facts)
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


Allgather = Callable[[Any], Sequence[Any]]
"""Gives every rank the values of all, in order of rank; the values are plain JSON."""


def write_sharded_checkpoint(
    storage: Storage,
    directory: Path | None,
    *,
    rank: int,
    allgather: Allgather,
    selector: Selector | None = None,
    **facts: Any,
) -> Manifest:
    """Publish the ranks' directories as one checkpoint, and return its manifest on every rank.

    Collective: all ranks call it, those without files with `directory=None`. The `facts`, those of `manifest.draft`, are
    rank 0's; metadata is merged. Whatever goes wrong on one rank raises on all, and then nothing is published.
    """
    together = partial(_together, allgather)

    def offer() -> _Offer:
        return _Offer(draft(**facts), directory_id(directory) if directory else None, selector is not None)

    offers = together(offer, _Offer)
    brings = sources([each.directory for each in offers], [each.selects for each in offers])
    merged = merge_metadata([each.facts.metadata for each in offers])
    manifest = msgspec.structs.replace(offers[0].facts, metadata=merged)
    claims = together(lambda: _claim(directory, selector) if directory and brings[rank] else {}, dict[str, FileEntry])
    shards = plan_shards(claims)
    files = {name: entry for claim in claims for name, entry in claim.items()}
    try:
        together(lambda: storage.begin(manifest.uuid) if rank == 0 else None, None)
        together(lambda: storage.put(manifest.uuid, directory, shards[rank]) if directory else None, None)
        finished = together(lambda: _finish(storage, manifest, files) if rank == 0 else None, Manifest | None)
        return msgspec.convert(finished[0], Manifest)
    except BaseException:
        if rank == 0:
            storage.abort(manifest.uuid)
        raise


class _Offer(msgspec.Struct, frozen=True):
    facts: Manifest
    directory: str | None
    selects: bool


def _claim(directory: Path, selector: Selector | None) -> dict[str, FileEntry]:
    settle(directory)
    wanted = (name for name in names(directory) if name not in OWN)
    return entries(directory, (name for name in wanted if selector is None or selector(name)))


def _finish(storage: Storage, manifest: Manifest, files: Mapping[str, FileEntry]) -> Manifest:
    with tempfile.TemporaryDirectory(prefix="det-manifest-") as folder:
        manifest = describe(Path(folder), manifest, files)
        storage.put(manifest.uuid, Path(folder), [METADATA, MANIFEST])
    storage.commit(manifest.uuid)
    return manifest


def _together(allgather: Allgather, step: Callable[[], Any], kind: Any) -> list[Any]:
    """Take a step that all ranks take, each learning how the others fared, so that none waits for one that failed."""
    result, failure = None, None
    try:
        result = msgspec.to_builtins(step())
    except Exception as error:  # whatever it is, the other ranks wait to hear of it
        failure = error
    answers = allgather([failure and f"{type(failure).__name__}: {failure}", result])
    if failure:
        raise failure
    for rank, (problem, _) in enumerate(answers):
        if problem:
            raise CheckpointError(f"rank {rank} failed to write its part of the checkpoint: {problem}")
    return [msgspec.convert(value, kind) for _, value in answers]
