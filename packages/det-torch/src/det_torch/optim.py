"""Backward passes and optimizer steps, with aggregation, averaging, clipping and scaling of
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch

from det_core import TrialError

from .precision import Precision
from .ranks import Gradients


class Stepped(Protocol):
    """The part of a context that `Steps` needs."""

    precision: Precision
    aggregation_frequency: int
    current_batch: int


class Steps:
    """Implements `backward` and `step_optimizer` of one context."""

    def __init__(self, context: Stepped, average: bool) -> None:
        self._context = context
        self._average = average
        self._differing: dict[int, bool] = {}
        self.before_step: list[Callable[[Iterator[Any]], None]] = []
        # None for a single rank.
        self.gradients: Gradients | None = None

    def set_average(self, optimizer: torch.optim.Optimizer, average: bool) -> None:
        """Set for one optimizer whether aggregated gradients are divided by their number."""
        self._differing[id(optimizer)] = average

    def backward(
        self,
        loss: torch.Tensor,
        gradient: Any = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute gradients, scaled if the precision needs it.

        On batches that are stepped, they are the mean over the ranks.
        """
        precision = self._context.precision
        if precision.type is None:
            self._backward(loss, gradient, retain_graph, create_graph)
            return
        if precision.auto_scaler is not None:
            loss = precision.auto_scaler.scale(loss)
        with precision.outside():
            self._backward(loss, gradient, retain_graph, create_graph)

    def _backward(self, loss: torch.Tensor, *how: Any) -> None:
        if (
            self.gradients is None
            or (self._context.current_batch + 1) % self._context.aggregation_frequency
        ):
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
        """Step the optimizer on every `aggregation_frequency`-th batch, after clipping.

        Then zero the gradients.
        """
        context = self._context
        if context.aggregation_frequency > 1:
            if not auto_zero_grads:
                raise TrialError(
                    "auto_zero_grads=False contradicts optimizations.aggregation_frequency:"
                    f" {context.aggregation_frequency}; leave one of them out"
                )
            if (context.current_batch + 1) % context.aggregation_frequency:
                return
        if scaler is None and context.precision.auto_scaler is not None:
            scaler = context.precision.auto_scaler
            context.precision.note_step(optimizer)
        if context.precision.type is None:
            self._step(optimizer, clip_grads, scaler)
        else:
            with context.precision.outside():
                self._step(optimizer, clip_grads, scaler)
        if auto_zero_grads:
            optimizer.zero_grad()

    def _step(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: Callable[..., Any] | None,
        scaler: Any,
    ) -> None:
        """Complete the gradients over ranks and batches, unscale and clip them, and step."""
        if self.gradients is not None:
            self.gradients.average_changed(optimizer)
        if self._context.aggregation_frequency > 1 and self._differing.get(
            id(optimizer), self._average
        ):
            self._divide(optimizer)
        if clip_grads or self.before_step:
            hooks = [*([clip_grads] if clip_grads else ()), *self.before_step]
            with nullcontext() if scaler is None else _unscaled(scaler, optimizer):
                for clip in hooks:
                    clip(p for group in optimizer.param_groups for p in group["params"])
        if scaler is not None:
            scaler.step(optimizer)
        else:
            optimizer.step()

    def _divide(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [
            p.grad
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        if gradients:
            torch._foreach_div_(gradients, self._context.aggregation_frequency)


@contextmanager
def _unscaled(scaler: Any, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Unscale gradients once.

    A trial with its own scaler may have unscaled them before, or may do so in the body.
    """
    unscale = scaler.unscale_

    def unscale_once(other: torch.optim.Optimizer) -> None:
        try:
            unscale(other)
        except RuntimeError as error:
            if other is not optimizer or "already been called" not in str(error):
                raise

    unscale_once(optimizer)
    scaler.unscale_ = unscale_once
    try:
        yield
    finally:
        del scaler.unscale_
