"""Launches ranks that communicate by `DistributedContext` only, without a framework's backend."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from det_core.ranks.launcher import Launcher, Layout


class SocketLauncher(Launcher):
    """Rank 0 listens at its port. All ranks share a key that is made for the launch."""

    @contextmanager
    def meeting(self, layout: Layout) -> Iterator[Sequence[Mapping[str, str]]]:
        key = secrets.token_hex(32)
        shared = {
            "DET_CHIEF_PORT": str(layout.places[0].port),
            "DET_RANKS_KEY": key,
            "DET_START_TIMEOUT": f"{layout.start_timeout:g}",
        }
        yield [shared] * layout.size

    def port(self, layout: Layout, rank: int) -> int | None:
        return layout.places[0].port


if __name__ == "__main__":
    from det_node.launch import run_as_module

    run_as_module("socket", "det_node.launch.socket")
