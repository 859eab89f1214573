"""Chooses the backend over which the ranks of a run exchange tensors."""

from __future__ import annotations

import sys

import torch.distributed as dist

from det_core import BackendRecord, Communicator, Plugins, RunInfo
from det_core.ranks.choice import choose_backend
from det_core.train import ranks

from ..backends import Objects, TorchBackend

_REFUSAL = (
    "the backend {name} cannot reduce torch's gradients; derive it from"
    " det_torch.backends.TorchBackend, or set distributed.backend to native"
)


def join_ranks(run: RunInfo) -> TorchBackend | None:
    """Connect to the other ranks of a run. Returns None if there is only one.

    Raises PluginError if the run's backend comes from a plugin that cannot sum torch's tensors.
    """
    backend: TorchBackend | None = ranks.join_ranks(run, TorchBackend, _REFUSAL, default=Objects)
    return backend


def backend_of_script(
    distributed: Communicator, wanted: str, plugins: Plugins
) -> BackendRecord | None:
    """Return the backend of a script's ranks: one that is initialized already, else the one of the
    configuration.
    """
    if distributed.size == 1:
        return None
    records = plugins.backends()
    for name, begun in (("horovod", _horovod_has_begun), ("torch", dist.is_initialized)):
        if wanted in ("auto", name) and begun():
            return choose_backend(name, "torch", records)
    return choose_backend(wanted, "torch", records)


def _horovod_has_begun() -> bool:
    hvd = sys.modules.get("horovod.torch")
    return hvd is not None and bool(hvd.is_initialized())
