"""The places where checkpoint directories are stored."""

from ._base import MANIFEST, Selector, Storage, is_manifest_of
from ._files import sync
from ._fsspec import FsspecStorage
from ._local import LocalStorage
from ._open import open_storage

__all__ = [
    "MANIFEST",
    "FsspecStorage",
    "LocalStorage",
    "Selector",
    "Storage",
    "is_manifest_of",
    "open_storage",
    "sync",
]
