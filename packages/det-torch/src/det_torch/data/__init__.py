"""Data for training and validation: loaders, the order of their batches, and exact resume at any
position.
"""

from ._attributes import find_datasets
from ._cached import CachedDataset, cached
from ._device import TorchData, data_length, to_device
from ._generators import is_generator, read_generators
from ._libraries import clean_shared_memory
from ._loader import DataLoader
from ._rng import seed_everything
from ._stream import TrainingStream, epoch_batches
from ._validation import ValidationBatches, validation_batches

__all__ = [
    "CachedDataset",
    "DataLoader",
    "TorchData",
    "TrainingStream",
    "ValidationBatches",
    "cached",
    "clean_shared_memory",
    "data_length",
    "epoch_batches",
    "find_datasets",
    "is_generator",
    "read_generators",
    "seed_everything",
    "to_device",
    "validation_batches",
]
