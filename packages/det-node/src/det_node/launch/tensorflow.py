"""`TF_CONFIG`, with which the workers of TensorFlow's strategies meet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from det_core.ranks.launcher import Launcher, Layout


class TensorFlow(Launcher):
    """Every rank is a worker that listens at its own port. A single rank needs no cluster."""

    @contextmanager
    def meeting(self, layout: Layout) -> Iterator[Sequence[Mapping[str, str]]]:
        if layout.size == 1:
            yield [{}]
            return
        workers = [f"{_host(place.host)}:{place.port}" for place in layout.places]
        yield [
            {
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
                )
            }
            for rank in range(layout.size)
        ]

    def port(self, layout: Layout, rank: int) -> int | None:
        return layout.places[rank].port


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


if __name__ == "__main__":
    from det_node.launch import run_as_module

    run_as_module("tensorflow", "det_node.launch.tensorflow")
