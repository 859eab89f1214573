"""The backends by which ranks of a trial, and workers of a script, exchange data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from ._base import KerasBackend as KerasBackend
    from ._horovod import HorovodBackend as HorovodBackend
    from ._native import Native as Native
    from .tf_config import TFConfig as TFConfig

lazy(__name__)
