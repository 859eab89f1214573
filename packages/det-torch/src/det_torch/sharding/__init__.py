"""Models whose parameters are sharded over the ranks by `fully_shard`, and their checkpoints in
parts.
"""

from ._files import FOLDER, Like, Place, fill, whole, write
from ._tensors import fingerprint, is_sharded, like, reshard
from ._wrap import Blocks, Sharding, materialize

__all__ = [
    "FOLDER",
    "Blocks",
    "Like",
    "Place",
    "Sharding",
    "fill",
    "fingerprint",
    "is_sharded",
    "like",
    "materialize",
    "reshard",
    "whole",
    "write",
]
