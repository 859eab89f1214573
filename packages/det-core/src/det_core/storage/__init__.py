"""The places where checkpoint directories are stored."""

from ._base import MANIFEST, Selector, Storage, checked_uuid, is_manifest_of
from ._files import readable, sync
from ._fsspec import FsspecStorage
from ._local import LocalStorage
from ._open import open_storage

__all__ = [
    "MANIFEST",
    "FsspecStorage",
    "LocalStorage",
    "Selector",
    "Storage",
    "checked_uuid",
    "is_manifest_of",
    "open_storage",
    "readable",
    "sync",
]
