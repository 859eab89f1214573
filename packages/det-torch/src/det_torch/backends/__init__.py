"""Backends that exchange tensors between ranks: Horovod, `torch.distributed`, and det's own
connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from ._base import TorchBackend as TorchBackend
    from ._horovod import HorovodBackend as HorovodBackend
    from ._native import Native as Native
    from ._objects import Objects as Objects

lazy(__name__)
