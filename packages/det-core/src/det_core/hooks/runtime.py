"""What det-node gives to a process of a run: its driver, and the other ranks.

det-core opens no connection. The distribution that does so names a module of its own as the entry
point `runtime` of the group `det.node`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from ..errors import PluginError
from ..support.installation import how_to_install

if TYPE_CHECKING:
    from ..ranks.backend import Backend
    from ..train.environ import WorkerEnv
    from ..train.host import DriverHost

ENTRY_POINT_GROUP = "det.node"


class Runtime(Protocol):
    """The module that det-node registers."""

    @property
    def Socket(self) -> Callable[..., Backend]:
        """Return the backend that needs no framework."""

    def connect(self, env: WorkerEnv) -> DriverHost:
        """Connect to the driver of a run."""


@cache
def runtime() -> Runtime:
    """Return the module that det-node registers. Raises PluginError where that is not installed."""
    # It imports socket, which a script of one process does without.
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINT_GROUP, name="runtime"):
        return cast("Runtime", entry.load())
    raise PluginError(
        "a process of several ranks, or of a run, needs det-node, which is not installed; run:"
        f" {how_to_install('det-node')}"
    )
