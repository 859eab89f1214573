"""Which backend the ranks of a run exchange tensors over."""

from __future__ import annotations

import sys

import torch.distributed as dist

from det_core import BackendRecord, Communicator, PluginError, Plugins, RunInfo
from det_core.backends import choose_backend

from ..backends import Objects, TorchBackend


def join_ranks(run: RunInfo) -> TorchBackend | None:
    """Meet the other ranks of a run; returns None where there is one only.

    Raises PluginError where the run's backend is of a plugin that knows nothing of torch's tensors.
    """
    if run.distributed.size == 1:
        return None
    kind = run.backend.load() if run.backend is not None else Objects
    if not issubclass(kind, TorchBackend):
        name = run.backend.name if run.backend is not None else ""
        raise PluginError(
            f"the backend {name!r} cannot reduce torch's gradients; derive it from det_torch.backends.TorchBackend, or set "
            "distributed.backend to native"
        )
    backend = kind.join(run.distributed, run.config.optimizations)
    backend.init()
    return backend


def backend_of_script(distributed: Communicator, wanted: str, plugins: Plugins) -> BackendRecord | None:
    """Return the backend for a script's ranks: that which has begun already, else what the configuration says."""
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
