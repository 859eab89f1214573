"""`python3 -m det_core.launch.tensorflow [OPTIONS] [--] COMMAND...`: start the command on every slot, for TensorFlow."""

from __future__ import annotations

import sys

from ..cli import main

if __name__ == "__main__":
    main(["launch", "tensorflow", *sys.argv[1:]])
