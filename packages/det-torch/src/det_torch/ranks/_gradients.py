"""Averages gradients over the ranks. The mean is complete when the backward pass has ended.

det does this itself, for Horovod and `torch.distributed` alike. It does not use their wrappers of
models and optimizers. `docs/decisions/0007-gradients-of-ranks.md` gives the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from typing import Any

import torch

from ..backends import TorchBackend
from ..sharding import is_sharded
from ._bucket import Bucket, buckets


class Gradients:
    """Averages the gradients of the parameters of some optimizers over the ranks.

    With one optimizer, gradients travel during the backward pass. With several, they travel after
    it: one pass may fill the gradients of many optimizers, and a step use those of one. The ranks
    then exchange the same tensors in the same order, whatever order the pass had on each of them.
    """

    def __init__(self, backend: TorchBackend) -> None:
        self._backend = backend
        self._shares: dict[int, _Share] = {}
        self._overlap = self.passing = False

    def add(
        self, optimizer: torch.optim.Optimizer, compress: bool, models: Iterable[torch.nn.Module]
    ) -> None:
        """Register an optimizer. With `compress` its gradients travel as 16-bit numbers."""
        name = f"det.gradients.{len(self._shares)}"
        share = self._shares[id(optimizer)] = _Share(
            optimizer, self._backend, name, compress, models, self
        )
        share.watch()
        optimizer.register_step_pre_hook(self._before_step)
        self._overlap = len(self._shares) == 1

    def backward(self, run: Callable[[], object]) -> None:
        """Run a backward pass, and average the gradients that it changes."""
        shares = list(self._shares.values())
        for share in shares:
            share.begin()
        self.passing = self._overlap
        try:
            run()
        finally:
            self.passing = False
        self._reduce([share for share in shares if share.reached or len(shares) == 1])

    def average_changed(self, optimizer: torch.optim.Optimizer) -> None:
        """Average the optimizer's gradients that other backward passes than those of `backward`
        have changed.
        """
        share = self._shares.get(id(optimizer))
        if share is not None and share.changed:
            self._reduce([share])

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> Any:
        """Average gradients before any step, also one that the trial makes itself.

        Otherwise the ranks would train different models.
        """
        self.average_changed(optimizer)
        closure = options.get("closure", arguments[1] if len(arguments) > 1 else None)
        if not callable(closure):
            return None
        rest = {name: value for name, value in options.items() if name != "closure"}
        return (optimizer, self._of_all(closure, optimizer), *arguments[2:]), rest

    def _of_all(
        self, closure: Callable[[], Any], optimizer: torch.optim.Optimizer
    ) -> Callable[[], Any]:
        """Return a closure whose gradients are the means over the ranks.

        The loss is averaged too if the optimizer depends on it.
        """
        parameter = signature(optimizer.step).parameters.get("closure")
        # A required closure means that the optimizer uses its loss, as LBFGS does.
        goes_by_loss = parameter is not None and parameter.default is Parameter.empty

        def evaluate() -> Any:
            loss = closure()
            self.average_changed(optimizer)
            return self._mean(loss) if goes_by_loss else loss

        return evaluate

    def _mean(self, loss: Any) -> torch.Tensor:
        mean = torch.as_tensor(loss).detach().clone()
        if not self._backend.carries(mean.dtype):
            mean = mean.float()
        mean /= self._backend.ranks.size
        self._backend.start_sum(mean, "det.loss")()
        return mean

    @property
    def pending(self) -> bool:
        """Whether there are gradients that have not been averaged over the ranks."""
        return any(share.changed for share in self._shares.values())

    def resume(self) -> None:
        """Mark the gradients as not averaged, after each rank's own gradients were restored."""
        for share in self._shares.values():
            share.changed = True

    def _reduce(self, shares: Sequence[_Share]) -> None:
        for share in shares:
            share.launch()
        for share in shares:
            # Some gradients were sent too early, which would happen again.
            if share.land():
                self._overlap = False


class _Share:
    """The gradients of one optimizer.

    - `reached`: whether the current backward pass has computed one of them.
    - `changed`: whether some have changed since they were averaged.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        backend: TorchBackend,
        name: str,
        compress: bool,
        models: Iterable[torch.nn.Module],
        owner: Gradients,
    ) -> None:
        self._optimizer, self._backend, self._name, self._compress = (
            optimizer,
            backend,
            name,
            compress,
        )
        self._models, self._owner = models, owner
        self._hooks: dict[int, Any] = {}
        self._known: list[int] = []
        self._bucket_of: dict[int, Bucket] = {}
        self._buckets: list[Bucket] = []
        self._sparse: list[torch.nn.Parameter] = []
        self._next = 0
        self.reached = self.changed = False

    def begin(self) -> None:
        """Prepare for a backward pass."""
        self.reached = False
        self._next = 0
        parameters = self._parameters()
        if self._known != list(map(id, parameters)):
            self._build(parameters)
        self.watch()
        for bucket in self._buckets:
            bucket.pending = sum(p.requires_grad for p in bucket.parameters)

    def watch(self) -> None:
        """Register hooks on the gradients of all parameters, including those that need a gradient
        again.
        """
        for p in self._parameters():
            if p.requires_grad and id(p) not in self._hooks:
                self._hooks[id(p)] = p.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def _parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters that are not sharded.

        FSDP reduces the gradients of sharded ones.
        """
        return [
            p
            for group in self._optimizer.param_groups
            for p in group["params"]
            if not is_sharded(p)
        ]

    def launch(self) -> None:
        """Start to sum the buckets that are not in progress."""
        if not self._known:
            self.begin()
        for bucket in self._buckets[self._next :]:
            bucket.launch()
        self._next = len(self._buckets)

    def land(self) -> bool:
        """Set the means as gradients of all parameters.

        Returns whether some had been sent before they were complete. These are sent again.
        """
        early = [bucket for bucket in self._buckets if bucket.early]
        for bucket in early:
            bucket.wait()
            bucket.launch()
        for bucket in self._buckets:
            bucket.land()
        for parameter in self._sparse:
            self._average_sparse(parameter)
        self.changed = False
        self._next = 0
        return bool(early)

    def _build(self, parameters: list[torch.nn.Parameter]) -> None:
        self._known = list(map(id, parameters))
        sparse = {
            id(m.weight)
            for model in self._models
            for m in model.modules()
            if getattr(m, "sparse", False)
        }
        self._sparse = [p for p in parameters if id(p) in sparse]
        dense = [p for p in parameters if id(p) not in sparse]
        self._buckets = buckets(dense, self._compress, self._backend, self._name)
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """Note a gradient. Send the buckets that are complete, in their order."""
        self.reached = self.changed = True
        if not self._owner.passing:
            return
        bucket = self._bucket_of.get(id(parameter))
        if bucket is None:
            return
        bucket.pending -= 1
        while self._next < len(self._buckets) and self._buckets[self._next].pending <= 0:
            self._buckets[self._next].launch()
            self._next += 1

    def _average_sparse(self, parameter: torch.nn.Parameter) -> None:
        """Average the rows that any rank's gradient has.

        They travel as objects, as their number differs.
        """
        mine = parameter.grad
        if mine is not None:
            mine = mine.coalesce() if mine.is_sparse else mine.to_sparse().coalesce()
        everyone = self._backend.allgather(
            None if mine is None else (mine.indices().cpu(), mine.values().cpu())
        )
        theirs = [each for each in everyone if each is not None]
        if not theirs:
            return
        indices = torch.cat([indices for indices, _ in theirs], dim=1)
        values = torch.cat([values for _, values in theirs]) / self._backend.ranks.size
        gradient = torch.sparse_coo_tensor(
            indices, values, parameter.shape, device=parameter.device, check_invariants=False
        )
        parameter.grad = gradient.coalesce()
