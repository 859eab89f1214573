"""Data sets on disk, without a framework: numbered records, written once for all processes."""

from ._cache import DatasetCache
from ._records import Records, Shuffle
from ._values import ArrayKind, ValueCodec

__all__ = ["ArrayKind", "DatasetCache", "Records", "Shuffle", "ValueCodec"]
