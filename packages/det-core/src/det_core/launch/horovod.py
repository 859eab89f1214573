"""`python3 -m det_core.launch.horovod [OPTIONS] [--] COMMAND...`: start the command on every slot, for Horovod."""

from __future__ import annotations

import sys

from ..cli import main

if __name__ == "__main__":
    main(["launch", "horovod", *sys.argv[1:]])
