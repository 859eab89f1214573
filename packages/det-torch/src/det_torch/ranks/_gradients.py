"""One gradient for all ranks: the mean of theirs, there when the backward pass has ended.

det does this itself, for Horovod and `torch.distributed` alike, and not by their wrappers of models and optimizers:
`docs/decisions/0007-gradients-of-ranks.md` says why.
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

    With one optimizer, gradients travel while the backward pass goes on. With several, of which one pass may fill the gradients
    of many and a step use those of one, they travel when it has ended: the ranks then exchange the same things in the same
    order, whatever order the pass had on each of them.
    """

    def __init__(self, backend: TorchBackend) -> None:
        self._backend = backend
        self._shares: dict[int, _Share] = {}
        self._overlap = self.passing = False

    def add(self, optimizer: torch.optim.Optimizer, compress: bool, models: Iterable[torch.nn.Module]) -> None:
        """Take in an optimizer; `compress` lets its gradients travel as 16-bit numbers."""
        name = f"det.gradients.{len(self._shares)}"
        share = self._shares[id(optimizer)] = _Share(optimizer, self._backend, name, compress, models, self)
        share.watch()
        optimizer.register_step_pre_hook(self._before_step)
        self._overlap = len(self._shares) == 1

    def backward(self, run: Callable[[], object]) -> None:
        """Run a backward pass, and average what it changes."""
        shares = list(self._shares.values())
        for share in shares:
            share.begin()
        self.passing = self._overlap
        try:
            run()
        finally:
            self.passing = False
        self._reduce([share for share in shares if share.reached or len(shares) == 1])

    def settle(self, optimizer: torch.optim.Optimizer) -> None:
        """Average what backward passes that were not run here have changed of an optimizer's gradients."""
        share = self._shares.get(id(optimizer))
        if share is not None and share.changed:
            self._reduce([share])

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> Any:
        """Let no gradient of one rank's own reach a step, whoever called it: each rank would train a model of its own."""
        self.settle(optimizer)
        closure = options.get("closure", arguments[1] if len(arguments) > 1 else None)
        if not callable(closure):
            return None
        rest = {name: value for name, value in options.items() if name != "closure"}
        return (optimizer, self._of_all(closure, optimizer), *arguments[2:]), rest

    def _of_all(self, closure: Callable[[], Any], optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
        """Return a closure whose gradients, and whose loss where the optimizer goes by it, are the means over the ranks."""
        parameter = signature(optimizer.step).parameters.get("closure")
        goes_by_loss = parameter is not None and parameter.default is Parameter.empty  # it cannot do without, as LBFGS

        def evaluate() -> Any:
            loss = closure()
            self.settle(optimizer)
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
        """Whether there are gradients that are still each rank's own."""
        return any(share.changed for share in self._shares.values())

    def resume(self) -> None:
        """Take note that gradients of each rank's own were put back."""
        for share in self._shares.values():
            share.changed = True

    def _reduce(self, shares: Sequence[_Share]) -> None:
        for share in shares:
            share.launch()
        for share in shares:
            if share.land():  # it had begun too early, and would again
                self._overlap = False


class _Share:
    """The gradients of one optimizer. `reached` says that the pass that goes on has come to one of them, `changed` that
    some have not been averaged since they changed."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        backend: TorchBackend,
        name: str,
        compress: bool,
        models: Iterable[torch.nn.Module],
        owner: Gradients,
    ) -> None:
        self._optimizer, self._backend, self._name, self._compress = optimizer, backend, name, compress
        self._models, self._owner = models, owner
        self._hooks: dict[int, Any] = {}
        self._known: list[int] = []
        self._bucket_of: dict[int, Bucket] = {}
        self._buckets: list[Bucket] = []
        self._sparse: list[torch.nn.Parameter] = []
        self._next = 0
        self.reached = self.changed = False

    def begin(self) -> None:
        """Expect a backward pass."""
        self.reached = False
        self._next = 0
        parameters = self._parameters()
        if self._known != list(map(id, parameters)):
            self._build(parameters)
        self.watch()
        for bucket in self._buckets:
            bucket.awaited = sum(p.requires_grad for p in bucket.parameters)

    def watch(self) -> None:
        """Hear of the gradients of all parameters, also of those that have thawed."""
        for p in self._parameters():
            if p.requires_grad and id(p) not in self._hooks:
                self._hooks[id(p)] = p.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def _parameters(self) -> list[torch.nn.Parameter]:
        """Return those that each rank has a copy of; the gradients of others are reduced where they are divided."""
        return [p for group in self._optimizer.param_groups for p in group["params"] if not is_sharded(p)]

    def launch(self) -> None:
        """Send what is not on its way yet."""
        if not self._known:
            self.begin()
        for bucket in self._buckets[self._next :]:
            bucket.launch()
        self._next = len(self._buckets)

    def land(self) -> bool:
        """Give all parameters their means; tell whether some had been sent before their gradients were complete."""
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
        sparse = {id(m.weight) for model in self._models for m in model.modules() if getattr(m, "sparse", False)}
        self._sparse = [p for p in parameters if id(p) in sparse]
        dense = [p for p in parameters if id(p) not in sparse]
        self._buckets = buckets(dense, self._compress, self._backend, self._name)
        self._bucket_of = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}

    def _accumulated(self, parameter: torch.Tensor) -> None:
        """Take note of a gradient; send the buckets that are complete, in their order."""
        self.reached = self.changed = True
        if not self._owner.passing:
            return
        bucket = self._bucket_of.get(id(parameter))
        if bucket is None:
            return
        bucket.awaited -= 1
        while self._next < len(self._buckets) and self._buckets[self._next].awaited <= 0:
            self._buckets[self._next].launch()
            self._next += 1

    def _average_sparse(self, parameter: torch.nn.Parameter) -> None:
        """Average the rows that any rank's gradient has; they travel as objects, as their number differs."""
        mine = parameter.grad
        if mine is not None:
            mine = mine.coalesce() if mine.is_sparse else mine.to_sparse().coalesce()
        everyone = self._backend.allgather(None if mine is None else (mine.indices().cpu(), mine.values().cpu()))
        theirs = [answer for answer in everyone if answer is not None]
        if not theirs:
            return
        indices = torch.cat([indices for indices, _ in theirs], dim=1)
        values = torch.cat([values for _, values in theirs]) / self._backend.ranks.size
        gradient = torch.sparse_coo_tensor(
            indices, values, parameter.shape, device=parameter.device, check_invariants=False
        )
        parameter.grad = gradient.coalesce()
