"""Functions of Determined's `util` that its examples use."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from det_core import import_from_path

__all__ = ["download_gcs_blob_with_backoff", "import_from_path", "merge_dicts"]


def merge_dicts(base_dict: Mapping[Any, Any], source_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a dict with the values of another one on top. Nested dicts are merged, too."""
    merged = dict(base_dict)
    for key, value in source_dict.items():
        inner = merged.get(key)
        merged[key] = (
            merge_dicts(inner, value)
            if isinstance(inner, Mapping) and isinstance(value, Mapping)
            else value
        )
    return merged


def download_gcs_blob_with_backoff(blob: Any, n_retries: int = 32, max_backoff: int = 32) -> Any:
    """Return the bytes of a blob in Google Cloud Storage, with retries.

    The pauses are 1, 2, 4, … seconds, at most `max_backoff`.
    """
    for attempt in range(n_retries):
        try:
            return blob.download_as_string()
        except Exception:
            if attempt + 1 == n_retries:
                raise
            time.sleep(min(2**attempt, max_backoff))
    raise ValueError(f"n_retries is {n_retries}; give 1 or more")
