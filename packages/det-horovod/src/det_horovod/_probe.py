"""One of two ranks that add their vectors: `python -m det_horovod._probe torch`; prints what came of it as JSON."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

_LENGTH = 1000
_MAKERS = {"torch": "tensor", "tensorflow": "constant"}


def main(framework: str) -> None:
    """Meet the other rank, add, and say what the sum was and what this Horovod can talk over."""
    hvd, library = importlib.import_module(f"horovod.{framework}"), importlib.import_module(framework)
    hvd.init()
    tensor: Any = getattr(library, _MAKERS[framework])([float(hvd.rank() + 1)] * _LENGTH)
    total = hvd.allreduce(tensor, op=hvd.Sum).numpy().tolist()
    found = {
        "right": total == [float(sum(range(hvd.size() + 1)))] * _LENGTH,
        "ranks": hvd.size(),
        "operations": [kind for kind in ("gloo", "mpi", "nccl") if getattr(hvd, f"{kind}_built")()],
    }
    hvd.shutdown()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
