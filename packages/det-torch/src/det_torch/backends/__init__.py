"""How the ranks of a trial exchange tensors: over Horovod, over `torch.distributed`, or over core's own connections."""

from ._base import TorchBackend
from ._horovod import HorovodBackend
from ._native import Native
from ._objects import Objects

__all__ = ["HorovodBackend", "Native", "Objects", "TorchBackend"]
