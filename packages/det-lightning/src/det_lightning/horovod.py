"""Horovod for Lightning 2.6. Lightning itself removed its support in 2.0.

Importing this module registers the strategy `horovod`:

    import det_lightning.horovod
    trainer = Trainer(strategy="horovod")

It needs nothing else from det. Start the script with `det launch horovod` or `horovodrun`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins import LayerSync
from lightning.pytorch.strategies import ParallelStrategy, StrategyRegistry
from lightning.pytorch.utilities import rank_zero_only
from torchmetrics import Metric

from det_core import DetError
from det_core.ranks.backend import available_by
from det_torch.backends import TorchBackend
from det_torch.ranks import Gradients, Replicas

from .internals import layer_sync


class HorovodStrategy(ParallelStrategy):
    """Averages gradients and reduces metrics over Horovod's ranks.

    Gradients travel during the backward pass and are the means over the ranks when it ends, so that
    clipping and hooks see the means. With `accumulate_grad_batches` they travel in the last pass
    only. The optimizers stay the user's own objects.

    - `fp16_compression`: whether gradients travel as 16-bit numbers.
    - `backend`: a backend that connects the ranks already. By default Horovod is initialized from
      the launcher's variables.
    """

    strategy_name = "horovod"

    def __init__(
        self,
        backend: TorchBackend | None = None,
        parallel_devices: list[torch.device] | None = None,
        fp16_compression: bool = False,
        **lightning: Any,
    ) -> None:
        super().__init__(parallel_devices=parallel_devices, **lightning)
        self._fp16_compression = fp16_compression
        self._backend = backend
        self._own = backend is None
        self._gradients: Gradients | None = None
        # Whether gradients wait for a later pass, in which they travel.
        self._waiting = False
        # Closed where a validation ends.
        self._validating = ExitStack()

    @property
    def backend(self) -> TorchBackend:
        """The backend of the ranks. Raises DetError if Horovod is not installed."""
        if self._backend is None:
            if not available_by("det_horovod", "torch")():
                raise DetError(
                    "strategy 'horovod' needs Horovod, built for torch; install it with: det"
                    " horovod install --with torch"
                )
            # The backend needs det-horovod, which is an extra.
            from det_torch.backends import HorovodBackend

            self._backend = HorovodBackend()
            self._backend.init()
        return self._backend

    # Ranks

    @property
    def is_distributed(self) -> bool:
        """True, so that Lightning deals the data to the ranks."""
        return True

    @property
    def root_device(self) -> torch.device:
        devices = self.parallel_devices or [torch.device("cpu")]
        return devices[self.local_rank % len(devices)]

    @property
    def global_rank(self) -> int:
        return self.backend.ranks.rank

    @property
    def local_rank(self) -> int:
        return self.backend.ranks.local_rank

    @property
    def node_rank(self) -> int:
        return self.backend.ranks.cross_rank

    @property
    def world_size(self) -> int:
        return self.backend.ranks.size

    @property
    def num_processes(self) -> int:
        """The number of ranks on this host."""
        return self.backend.ranks.local_size

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def set_world_ranks(self) -> None:
        """Make only the chief print and log."""
        rank_zero_only.rank = self.global_rank  # type: ignore[attr-defined]

    # Setting up

    def setup_environment(self) -> None:
        super().setup_environment()
        self.set_world_ranks()

    def setup(self, trainer: pl.Trainer) -> None:
        _refuse_sync(layer_sync(self))
        super().setup(trainer)
        assert self.lightning_module is not None
        replicas = Replicas(self.backend, [self.lightning_module], [])
        replicas.align()
        self._gradients = Gradients(self.backend)
        for optimizer in self.optimizers:
            self._gradients.add(optimizer, self._fp16_compression, [self.lightning_module])
        for each in self.lightning_module.modules():
            if isinstance(each, Metric) and each.dist_sync_fn is None:
                each.dist_sync_fn, each.distributed_available_fn = self._gather_states, _yes

    def model_to_device(self) -> None:
        assert self.model is not None
        self.model.to(self.root_device)

    def on_train_start(self) -> None:
        """Copy the chief's weights and optimizer states to this rank."""
        assert self.lightning_module is not None
        Replicas(self.backend, [self.lightning_module], self.optimizers).align()
        if self._gradients is not None and self._has_gradients():
            self._gradients.resume()

    def on_validation_start(self) -> None:
        """Give this rank the chief's buffers, such as running means, until the validation ends."""
        assert self.lightning_module is not None
        replicas = Replicas(self.backend, [self.lightning_module], [])
        self._validating.enter_context(replicas.chiefs_buffers())

    def on_validation_end(self) -> None:
        self._validating.close()

    def teardown(self) -> None:
        if self.cluster_environment is None:
            super(ParallelStrategy, self).teardown()
        else:
            super().teardown()
        if self._own and self._backend is not None:
            self._backend.barrier()

    # Gradients

    def backward(
        self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        base = super().backward

        def run() -> None:
            losses.append(base(closure_loss, optimizer, *args, **kwargs))

        if self._waiting or self._gradients is None:
            run()
        else:
            self._gradients.backward(run)
        return losses[0]

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        module = self.lightning_module
        if self._gradients is not None and module is not None and not module.automatic_optimization:
            own = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
            self._gradients.average_changed(own)
        return super().optimizer_step(optimizer, closure, model, **kwargs)

    def _has_gradients(self) -> bool:
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return self.backend.agree(
            any(p.grad is not None for group in groups for p in group["params"])
        )

    # Collectives

    def barrier(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        self.backend.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if src == 0:
            return self.backend.broadcast(obj)
        return self.backend.allgather(obj)[src]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the mean, sum, minimum or maximum of a tensor over the ranks.

        Other objects are returned unchanged.
        """
        if not isinstance(tensor, torch.Tensor):
            return tensor
        name = (
            reduce_op.lower()
            if isinstance(reduce_op, str)
            else str(reduce_op).rpartition(".")[2].lower()
        )
        if name in ("max", "min"):
            stacked = self._stacked(tensor)
            return stacked.amax(0) if name == "max" else stacked.amin(0)
        if name not in ("sum", "mean", "avg"):
            raise DetError(f"reduce_op is {reduce_op!r}; give 'mean', 'sum', 'max' or 'min'")
        total = self._sum(tensor)
        return total if name == "sum" else total / self.world_size

    def all_gather(
        self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False
    ) -> torch.Tensor:
        """Return the ranks' tensors, stacked.

        They must have the same shape. `sync_grads` lets gradients flow back to them.
        """
        if sync_grads and tensor.requires_grad:
            gathered: torch.Tensor = _Gather.apply(tensor, self)  # type: ignore[no-untyped-call]
            return gathered
        return self._stacked(tensor)

    def _sum(self, tensor: torch.Tensor) -> torch.Tensor:
        travelling = tensor.dtype if self.backend.carries(tensor.dtype) else torch.float32
        total = tensor.detach().to(travelling, copy=True).contiguous()
        self.backend.start_sum(total, "det.lightning.reduce")()
        return total.to(tensor.dtype)

    def _stacked(self, tensor: torch.Tensor) -> torch.Tensor:
        own = tensor.detach().to(torch.uint8) if tensor.dtype == torch.bool else tensor.detach()
        all_of_them = own.new_zeros((self.world_size, *own.shape))
        all_of_them[self.global_rank] = own
        return self._sum(all_of_them).to(tensor.dtype)

    def _gather_states(self, state: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
        """Return a metric's state on each rank. The shapes may differ."""
        return [theirs.to(state.device) for theirs in self.backend.allgather(state.detach().cpu())]

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        strategy_registry.register(
            cls.strategy_name, cls, description="Horovod, by det-lightning", override=True
        )


class _Gather(torch.autograd.Function):
    """Gathers tensors. The gradient is the sum of all ranks' gradients of this rank's part."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, strategy: HorovodStrategy) -> torch.Tensor:
        ctx.strategy = strategy
        return strategy._stacked(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.strategy._sum(gradients[0])[ctx.strategy.global_rank], None


def _yes() -> bool:
    return True


def _refuse_sync(sync: LayerSync | None) -> None:
    if sync is not None:
        raise DetError(
            "sync_batchnorm needs Lightning's DDP; leave it out, or train with distributed.backend:"
            " native"
        )


HorovodStrategy.register_strategies(StrategyRegistry)
