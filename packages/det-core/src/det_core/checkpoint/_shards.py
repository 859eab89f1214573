"""Checkpoints that several ranks write: which rank uploads what, and which files conflict.

The rules are those of Determined's sharded uploads. In addition, `metadata.json` is always among
the files, and conflicts are found on every kind of storage. Ranks that get the same lists come to
the same result, or raise the same error.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import CheckpointError
from .manifest import FileEntry


def directory_id(directory: Path) -> str:
    """Return a name that is equal for two ranks of a host that have the same directory."""
    status = os.stat(directory)
    return f"{socket.gethostname()}:{status.st_dev}:{status.st_ino}"


def sources(directories: Sequence[str | None], selecting: Sequence[bool]) -> list[bool]:
    """Return which ranks bring files.

    These are the lowest of the ranks that share a directory, and every rank with a selector.
    `directories` are the ranks' `directory_id`s, None where a rank has none.
    """
    if all(directory is None for directory in directories):
        raise CheckpointError("no rank gave a directory to checkpoint; at least one must")
    if wrong := [rank for rank, mine in enumerate(directories) if mine is None and selecting[rank]]:
        raise CheckpointError(f"rank {wrong[0]} gave a selector without a directory; give it one")
    whole = [None if selecting[rank] else mine for rank, mine in enumerate(directories)]
    return [
        mine is not None and (selecting[rank] or whole.index(mine) == rank)
        for rank, mine in enumerate(directories)
    ]


def plan_shards(claims: Sequence[Mapping[str, FileEntry]]) -> list[list[str]]:
    """Return the names that each rank uploads, given the files that each brings.

    If several ranks bring the same file, the lowest of them uploads it. Raises CheckpointError,
    with a list, for files that differ between ranks, and for names that are a file on one rank and
    a directory on another.
    """
    ranks: dict[str, list[int]] = defaultdict(list)
    folders: dict[str, set[int]] = defaultdict(set)
    for rank, files in enumerate(claims):
        for name in files:
            ranks[name].append(rank)
            for folder in PurePosixPath(name).parents:
                folders[str(folder)].add(rank)
    if conflicts := [*_different(claims, ranks), *_both(ranks, folders)]:
        raise CheckpointError(
            f"the ranks' files conflict: {'; '.join(conflicts)}; give each rank names of its own"
        )
    return [[name for name in files if ranks[name][0] == rank] for rank, files in enumerate(claims)]


def _different(
    claims: Sequence[Mapping[str, FileEntry]], ranks: Mapping[str, Sequence[int]]
) -> list[str]:
    return [
        f"{name} differs between ranks {list(owners)}"
        for name, owners in sorted(ranks.items())
        if len({(claims[rank][name].size, claims[rank][name].digest) for rank in owners}) > 1
    ]


def _both(ranks: Mapping[str, Sequence[int]], folders: Mapping[str, set[int]]) -> list[str]:
    return [
        f"{name} is a file on ranks {list(ranks[name])} and a directory on ranks"
        f" {sorted(folders[name])}"
        for name in sorted(ranks.keys() & folders.keys())
    ]


def merge_metadata(parts: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Merge the ranks' metadata. Raises CheckpointError for values that differ.

    Dictionaries are merged recursively.
    """
    merged: dict[str, Any] = {}
    for rank, part in enumerate(parts):
        _merge(merged, part or {}, rank, ())
    return merged


def _merge(into: dict[str, Any], part: Mapping[str, Any], rank: int, path: tuple[str, ...]) -> None:
    for key, value in part.items():
        here = (*path, key)
        if isinstance(value, Mapping):
            inner = into.setdefault(key, {})
            if not isinstance(inner, dict):
                _refuse(here, rank, value, inner)
            _merge(inner, value, rank, here)
        elif not _same(into.setdefault(key, value), value):
            _refuse(here, rank, value, into[key])


def _same(one: Any, other: Any) -> bool:
    # NaN is equal to nothing, but the ranks agree.
    both_nan = one != one and other != other  # noqa: PLR0124
    return both_nan or bool(one == other)


def _refuse(path: tuple[str, ...], rank: int, value: Any, before: Any) -> None:
    place = "/".join(path)
    raise CheckpointError(
        f"metadata conflicts at {place}: rank {rank} gives {value!r}, a rank before it {before!r}; "
        "give both the same, or a key of their own"
    )
