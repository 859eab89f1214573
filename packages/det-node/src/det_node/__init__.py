"""det-node: what runs on a machine that trains.

The agent, workers, the fork server, `det launch`, and the connections between them.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__: tuple[str, ...] = ()
