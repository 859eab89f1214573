"""The variables of `torchrun`, with which `torch.distributed` meets by `env://`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from det_core.ranks.launcher import Launcher, Layout, Place


class Torch(Launcher):
    """Rank 0 opens the store of `torch.distributed` at its port, and every rank connects to it."""

    # NCCL finds its own.
    interface_variables = ("GLOO_SOCKET_IFNAME",)

    @contextmanager
    def meeting(self, layout: Layout) -> Iterator[Sequence[Mapping[str, str]]]:
        chief = layout.places[0]
        yield [_variables(place, chief) for place in layout.places]

    def port(self, layout: Layout, rank: int) -> int | None:
        return layout.places[0].port


def _variables(place: Place, chief: Place) -> dict[str, str]:
    ranks = place.ranks
    return {
        "MASTER_ADDR": chief.host,
        "MASTER_PORT": str(chief.port),
        "RANK": str(ranks.rank),
        "WORLD_SIZE": str(ranks.size),
        "LOCAL_RANK": str(ranks.local_rank),
        "LOCAL_WORLD_SIZE": str(ranks.local_size),
        "GROUP_RANK": str(ranks.cross_rank),
        "GROUP_WORLD_SIZE": str(ranks.cross_size),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(ranks.rank),
        "ROLE_WORLD_SIZE": str(ranks.size),
        # Scripts check these to see whether a launcher started them. det never restarts a run from
        # within.
        "TORCHELASTIC_RUN_ID": f"det-{chief.port}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


if __name__ == "__main__":
    from det_node.launch import run_as_module

    run_as_module("torch", "det_node.launch.torch_distributed")
