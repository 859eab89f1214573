"""`python3 -m determined.launch.tensorflow`: what `det launch tensorflow` does."""

from __future__ import annotations

import sys

from det_driver.cli import main

if __name__ == "__main__":
    main(["launch", "tensorflow", *sys.argv[1:]])
