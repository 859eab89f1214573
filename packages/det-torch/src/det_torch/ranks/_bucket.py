"""Buckets of gradients, which travel in one flat tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from ..backends import TorchBackend

# Sizes of buckets in bytes, as in torch's DistributedDataParallel.
_FIRST, _LIMIT = 1 << 20, 25 << 20


class Bucket:
    """Gradients of one type and device, and for each the number of ranks that have one.

    A rank without a gradient of a parameter contributes zeros. It gets the mean if any other rank
    has a gradient.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        dtype: torch.dtype,
        backend: TorchBackend,
        name: str,
    ) -> None:
        self.parameters = list(parameters)
        # Gradients that the backward pass has not computed yet.
        self.pending = 0
        self._backend, self._name = backend, name
        count = sum(parameter.numel() for parameter in parameters)
        self._flat = torch.zeros(count + len(parameters), dtype=dtype, device=parameters[0].device)
        self._there = self._flat[count:]
        self._views = list(_views(self._flat, parameters))
        self._same = dtype == parameters[0].dtype
        self._missing: list[int] = []
        self._wait: Callable[[], object] | None = None

    @property
    def flying(self) -> bool:
        """Whether its sum is in progress."""
        return self._wait is not None

    @property
    def early(self) -> bool:
        """Whether a gradient has changed since the sum began."""
        return self.flying and self.pending < 0

    def launch(self) -> None:
        """Start to sum the gradients as they are now."""
        self.pending = max(0, self.pending)
        with torch.no_grad():
            self._fill()
            self._wait = self._backend.start_sum(self._flat, self._name)

    def land(self) -> None:
        """Wait for the sum, and set the mean as each parameter's gradient."""
        self.wait()
        there = self._there.tolist() if self._missing else []
        missing = {index for index in self._missing if not there[index]}
        for index, (parameter, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            if index not in missing:
                parameter.grad = view if self._same else view.to(parameter.dtype)

    def wait(self) -> None:
        """Wait for the sum."""
        if self._wait is not None:
            self._wait()
            self._wait = None

    def _fill(self) -> None:
        """Copy the gradients into the flat tensor, divided by the number of ranks.

        They are divided before the sum, as the sum could overflow in 16 bits.
        """
        views: list[torch.Tensor] = []
        gradients: list[torch.Tensor] = []
        size = self._backend.ranks.size
        # On the CPU, memory is slow and calls are cheap.
        at_once = self._same and self._flat.device.type == "cpu"
        self._missing = []
        self._there.fill_(1)
        for index, (parameter, view) in enumerate(zip(self.parameters, self._views, strict=True)):
            gradient = parameter.grad
            if gradient is None:
                self._missing.append(index)
                view.zero_()
                self._there[index] = 0
            elif at_once:
                torch.div(gradient.to_dense() if gradient.is_sparse else gradient, size, out=view)
            elif gradient is not view:
                views.append(view)
                gradients.append(gradient.to_dense() if gradient.is_sparse else gradient)
        if views:
            torch._foreach_copy_(views, gradients)
        if not at_once:
            self._flat.div_(size)


def buckets(
    parameters: Sequence[torch.nn.Parameter], compress: bool, backend: TorchBackend, name: str
) -> list[Bucket]:
    """Return buckets in the order in which a backward pass is likely to complete them."""
    found: list[Bucket] = []
    for (_, _, travelling), members in _sorted(parameters, compress, backend).items():
        some: list[torch.nn.Parameter] = []
        size, limit = 0, _FIRST
        for parameter in members:
            some.append(parameter)
            size += parameter.numel() * travelling.itemsize
            if size >= limit:
                found.append(Bucket(some, travelling, backend, f"{name}.{len(found)}"))
                some, size, limit = [], 0, _LIMIT
        if some:
            found.append(Bucket(some, travelling, backend, f"{name}.{len(found)}"))
    return found


def _sorted(
    parameters: Sequence[torch.nn.Parameter], compress: bool, backend: TorchBackend
) -> dict[tuple[torch.device, torch.dtype, torch.dtype], list[torch.nn.Parameter]]:
    """Return the parameters, last first, by device, type, and the type in which their gradients
    travel.
    """
    found: dict[tuple[torch.device, torch.dtype, torch.dtype], list[torch.nn.Parameter]] = {}
    for parameter in reversed(parameters):
        travelling = parameter.dtype
        if compress and travelling in (torch.float32, torch.float64):
            travelling = torch.float16
        if not backend.carries(travelling):
            travelling = torch.float32
        found.setdefault((parameter.device, parameter.dtype, travelling), []).append(parameter)
    return found


def _views(flat: torch.Tensor, parameters: Sequence[torch.nn.Parameter]) -> Iterator[torch.Tensor]:
    """Yield a part of a flat tensor for each parameter, with the parameter's memory layout."""
    at = 0
    for parameter in parameters:
        part = flat[at : at + parameter.numel()]
        at += parameter.numel()
        if torch.ops.aten.is_non_overlapping_and_dense(parameter):
            yield part.as_strided(parameter.shape, parameter.stride())
        else:
            yield part.view(parameter.shape)
