"""The five kinds of data: arrays, weighted arrays, `tf.data`, sequences and adapted sequences.

Each can begin at any batch.
"""

from __future__ import annotations

from ._cache import CachedDataset, Share, epoch_of
from ._feed import BatchError, Feed, Reading
from ._input import InputData, make_feed
from ._sequence import SequenceAdapter
from ._shown import Shown

__all__ = [
    "BatchError",
    "CachedDataset",
    "Feed",
    "InputData",
    "Reading",
    "SequenceAdapter",
    "Share",
    "Shown",
    "epoch_of",
    "make_feed",
]
