"""Checkpoints: what they hold, and how they are written and read."""

from ._files import (
    read_checkpoint,
    read_json_object,
    write_checkpoint,
    write_sharded_checkpoint,
)
from .manifest import Manifest

__all__ = [
    "Manifest",
    "read_checkpoint",
    "read_json_object",
    "write_checkpoint",
    "write_sharded_checkpoint",
]
