"""`python3 -m determined.launch.horovod` does the same as `det launch horovod`."""

from __future__ import annotations

from det_node.launch import run_as_module

if __name__ == "__main__":
    run_as_module("horovod", "determined.launch.horovod")
