"""`python3 -m det_core.launch.torch_distributed [OPTIONS] [--] COMMAND...`: start it on every slot."""

from __future__ import annotations

import sys

from ..cli import main

if __name__ == "__main__":
    main(["launch", "torch", *sys.argv[1:]])
