"""Describes ranks that det started in Lightning's terms: strategy, environment and devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.pytorch.strategies import (
    DDPStrategy,
    ModelParallelStrategy,
    Strategy,
    StrategyRegistry,
)

from det_core import Ranks, RunInfo, TrialError
from det_torch.backends import Native, TorchBackend

from .horovod import HorovodStrategy
from .internals import overrides, read_divided


class RanksEnvironment(ClusterEnvironment):
    """The place of this process among ranks that are connected already.

    Lightning starts no process and opens no port.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        raise RuntimeError("the ranks have met already; there is no address to meet at")

    @property
    def main_port(self) -> int:
        raise RuntimeError("the ranks have met already; there is no port to meet at")

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._ranks.size

    def set_world_size(self, size: int) -> None:
        """Do nothing, as the size is known."""

    def global_rank(self) -> int:
        return self._ranks.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing, as the rank is known."""

    def local_rank(self) -> int:
        return self._ranks.local_rank

    def node_rank(self) -> int:
        return self._ranks.cross_rank


class DividedStrategy(ModelParallelStrategy):
    """Lightning's strategy for models that shard themselves in `configure_model` by `fully_shard`
    (FSDP2).

    The chief writes a whole checkpoint, so that it can be loaded on any number of ranks. Each rank
    reads its own file, with the same contents.
    """

    def __init__(self, ranks: int) -> None:
        super().__init__(
            data_parallel_size=ranks, tensor_parallel_size=1, save_distributed_checkpoint=False
        )

    def load_checkpoint(
        self, checkpoint_path: Any, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return read_divided(self, Path(checkpoint_path), weights_only)


def divides(given: Mapping[str, Any], run: RunInfo) -> bool:
    """Return whether the model is sharded over the ranks."""
    return run.config.optimizations.sharding != "none" or isinstance(
        given.get("strategy"), ModelParallelStrategy
    )


def must_divide(module: pl.LightningModule) -> None:
    """Raise TrialError for a module that does not define how it is sharded."""
    if not overrides(module, "configure_model"):
        raise TrialError(
            f"{type(module).__name__} is to be divided among the ranks and has no"
            " configure_model(): call fully_shard there, with"
            " mesh=self.device_mesh['data_parallel'], where self.device_mesh is not None"
        )


def arguments(
    given: Mapping[str, Any], run: RunInfo, backend: TorchBackend, device: torch.device
) -> dict[str, Any]:
    """Return the arguments of `Trainer` for a rank that a backend connects with the others."""
    strategy = given.get("strategy")
    chosen: Strategy
    if divides(given, run):
        if not isinstance(backend, Native):
            raise TrialError(
                "a model is divided by torch's own collectives; set distributed.backend: native"
            )
        chosen = _placed(DividedStrategy(backend.ranks.size), backend.ranks, device)
    elif isinstance(backend, Native):
        chosen = _ddp(strategy, backend.ranks, device)
    elif strategy in (None, "auto"):
        chosen = HorovodStrategy(
            backend, [device], fp16_compression=run.config.optimizations.gradient_compression
        )
    else:
        name = strategy if isinstance(strategy, str) else type(strategy).__name__
        raise TrialError(
            f"strategy {name!r} is Lightning's DDP, but this run's backend is Horovod; leave it"
            " out, or set distributed.backend: native"
        )
    nodes = backend.ranks.cross_size
    return {"accelerator": device.type, "devices": 1, "num_nodes": nodes, "strategy": chosen}


def _ddp(given: Any, ranks: Ranks, device: torch.device) -> Strategy:
    """Return Lightning's own DDP, as the trial configured it, with this rank's place."""
    strategy = (
        given
        if isinstance(given, DDPStrategy)
        else StrategyRegistry.get("ddp" if given in (None, "auto") else given)
    )
    return _placed(strategy, ranks, device)


def _placed(strategy: Any, ranks: Ranks, device: torch.device) -> Strategy:
    strategy.cluster_environment = RanksEnvironment(ranks)
    # The strategy takes the device of its local rank.
    strategy.parallel_devices = [device] * ranks.local_size
    chosen: Strategy = strategy
    return chosen
