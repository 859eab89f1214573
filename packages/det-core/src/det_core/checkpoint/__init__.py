"""Checkpoints: what they hold, how they are written and read, and which are kept."""

from ._gc import CheckpointRow, to_delete
from ._manifest import FileEntry, Manifest
from ._read import read_checkpoint
from ._sharded import write_sharded_checkpoint
from ._shards import directory_id, merge_metadata, plan_shards, sources
from ._write import write_checkpoint

__all__ = [
    "CheckpointRow",
    "FileEntry",
    "Manifest",
    "directory_id",
    "merge_metadata",
    "plan_shards",
    "read_checkpoint",
    "sources",
    "to_delete",
    "write_checkpoint",
    "write_sharded_checkpoint",
]
