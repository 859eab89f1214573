"""Checkpoints: what they hold and how they are written and read."""

from ..manifest import FileEntry, Manifest
from ._read import read_checkpoint
from ._shards import directory_id, merge_metadata, plan_shards, sources
from ._write import write_checkpoint, write_sharded_checkpoint

__all__ = [
    "FileEntry",
    "Manifest",
    "directory_id",
    "merge_metadata",
    "plan_shards",
    "read_checkpoint",
    "sources",
    "write_checkpoint",
    "write_sharded_checkpoint",
]
