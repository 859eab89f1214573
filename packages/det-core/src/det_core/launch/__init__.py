"""`python3 -m det_core.launch.torch_distributed`, `.horovod`, `.tensorflow`, `.socket`: `det launch` for entrypoints."""

from __future__ import annotations

__all__: tuple[str, ...] = ()
