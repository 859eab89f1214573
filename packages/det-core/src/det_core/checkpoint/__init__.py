"""Checkpoints: what they hold and how they are written and read."""

from ..manifest import Manifest
from ._files import read_checkpoint, write_checkpoint, write_sharded_checkpoint

__all__ = ["Manifest", "read_checkpoint", "write_checkpoint", "write_sharded_checkpoint"]
