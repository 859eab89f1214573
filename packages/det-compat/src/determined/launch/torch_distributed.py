"""`python3 -m determined.launch.torch_distributed`: what `det launch torch` does."""

from __future__ import annotations

import sys

from det_driver.cli import main

if __name__ == "__main__":
    main(["launch", "torch", *sys.argv[1:]])
