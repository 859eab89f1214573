"""`python3 -m determined.launch.horovod`: what `det launch horovod` does."""

from __future__ import annotations

import sys

from det_driver.cli import main

if __name__ == "__main__":
    main(["launch", "horovod", *sys.argv[1:]])
