"""`python3 -m det_core.launch.socket [OPTIONS] [--] COMMAND...`: start the command on every slot, for no framework."""

from __future__ import annotations

import sys

from ..cli import main

if __name__ == "__main__":
    main(["launch", "socket", *sys.argv[1:]])
