"""Backward passes and optimizer steps: gradient aggregation, averaging, clipping, scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from det_core import TrialError

from .precision import Precision
from .ranks import Gradients


class Stepped(Protocol):
    """What steps must know of the training that they are of, which is its context."""

    precision: Precision
    aggregation_frequency: int
    current_batch: int


class Steps:
    """`backward` and `step_optimizer` of one context."""

    def __init__(self, context: Stepped, average: bool) -> None:
        self._context = context
        self._average = average
        self._differing: dict[int, bool] = {}
        self.before_step: list[Callable[[Iterator[Any]], None]] = []
        self.gradients: Gradients | None = None  # of several ranks

    def set_average(self, optimizer: torch.optim.Optimizer, average: bool) -> None:
        """Decide for one optimizer whether aggregated gradients are divided by their number."""
        self._differing[id(optimizer)] = average

    def backward(
        self, loss: torch.Tensor, gradient: Any = None, retain_graph: bool = False, create_graph: bool = False
    ) -> None:
        """Compute gradients, scaled where the precision needs it; those of a batch that is stepped are the mean over the ranks."""
        precision = self._context.precision
        if precision.type is None:
            self._backward(loss, gradient, retain_graph, create_graph)
            return
        if precision.auto_scaler is not None:
            loss = precision.auto_scaler.scale(loss)
        with precision.outside():
            self._backward(loss, gradient, retain_graph, create_graph)

    def _backward(self, loss: torch.Tensor, *how: Any) -> None:
        if self.gradients is None or (self._context.current_batch + 1) % self._context.aggregation_frequency:
            loss.backward(*how)  # type: ignore[no-untyped-call]
        else:
            self.gradients.backward(lambda: loss.backward(*how))  # type: ignore[no-untyped-call]

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: Callable[[Iterator[torch.Tensor]], Any] | None = None,
        auto_zero_grads: bool = True,
        scaler: Any = None,
    ) -> None:
        """Step the optimizer on every `aggregation_frequency`-th batch, after clipping; then zero the gradients."""
        context = self._context
        automatic = scaler is None and context.precision.auto_scaler is not None
        if automatic:
            scaler = context.precision.auto_scaler
        if context.aggregation_frequency > 1:
            if not auto_zero_grads:
                raise TrialError(
                    f"auto_zero_grads=False contradicts optimizations.aggregation_frequency: {context.aggregation_frequency}; "
                    "leave one of them out"
                )
            if (context.current_batch + 1) % context.aggregation_frequency:
                return
        if context.precision.type is None:
            self._step(optimizer, clip_grads, scaler, automatic)
        else:
            with context.precision.outside():
                self._step(optimizer, clip_grads, scaler, automatic)
        if auto_zero_grads:
            optimizer.zero_grad()

    def _step(
        self, optimizer: torch.optim.Optimizer, clip_grads: Callable[..., Any] | None, scaler: Any, automatic: bool
    ) -> None:
        """Step with what gradients the ranks and batches have come to, clipped; a trial's own scaler is its own to unscale."""
        if self.gradients is not None:
            self.gradients.settle(optimizer)
        if self._context.aggregation_frequency > 1 and self._differing.get(id(optimizer), self._average):
            self._divide(optimizer)
        if clip_grads or self.before_step:
            if automatic:
                scaler.unscale_(optimizer)
            for clip in [*([clip_grads] if clip_grads else ()), *self.before_step]:
                clip(p for group in optimizer.param_groups for p in group["params"])
        if scaler is not None:
            scaler.step(optimizer)
            self._context.precision.stepped = self._context.precision.stepped or automatic
        else:
            optimizer.step()

    def _divide(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            torch._foreach_div_(gradients, self._context.aggregation_frequency)
