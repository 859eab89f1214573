"""Checkpoints: what they hold, and how they are written and read."""

from ._files import read_checkpoint, write_checkpoint, write_sharded_checkpoint
from .manifest import Manifest

__all__ = ["Manifest", "read_checkpoint", "write_checkpoint", "write_sharded_checkpoint"]
