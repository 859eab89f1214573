"""How the ranks of a trial, and the workers of a script, exchange what they have to."""

from ._base import KerasBackend
from ._horovod import HorovodBackend
from ._native import Native
from .tf_config import TFConfig

__all__ = ["HorovodBackend", "KerasBackend", "Native", "TFConfig"]
