"""Which GPUs there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ids of the GPUs that `CUDA_VISIBLE_DEVICES` lists, or of all that the NVIDIA driver has."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(g.strip() for g in visible.split(",") if g.strip() and g.strip() != "-1")
    devices = Path("/proc/driver/nvidia/gpus")
    return tuple(str(i) for i in range(len(list(devices.iterdir())))) if devices.is_dir() else ()
