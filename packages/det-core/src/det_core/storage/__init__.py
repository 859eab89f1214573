"""Where checkpoint directories live."""

from ._base import MANIFEST, Selector, Storage
from ._fsspec import FsspecStorage
from ._local import LocalStorage
from ._open import open_storage

__all__ = ["MANIFEST", "FsspecStorage", "LocalStorage", "Selector", "Storage", "open_storage"]
