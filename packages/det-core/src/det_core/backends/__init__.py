"""The backends that core brings beside `Serial`, and the choice among those of a framework."""

from __future__ import annotations

from ._choice import choose_backend, must_shard, wanted_backend
from ._star import RankError
from .socket import Socket, launched

__all__ = ["RankError", "Socket", "choose_backend", "launched", "must_shard", "wanted_backend"]
