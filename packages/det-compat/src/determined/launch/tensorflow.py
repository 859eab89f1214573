"""`python3 -m determined.launch.tensorflow` does the same as `det launch tensorflow`."""

from __future__ import annotations

from det_node.launch import run_as_module

if __name__ == "__main__":
    run_as_module("tensorflow", "determined.launch.tensorflow")
