"""Data sets on disk, of no framework: records by number, written once for all processes of a machine."""

from ._cache import DatasetCache
from ._records import Records, Shuffle
from ._values import ArrayKind, ValueCodec

__all__ = ["ArrayKind", "DatasetCache", "Records", "Shuffle", "ValueCodec"]
