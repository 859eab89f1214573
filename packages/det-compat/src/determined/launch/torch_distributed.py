"""`python3 -m determined.launch.torch_distributed` does the same as `det launch torch`."""

from __future__ import annotations

from det_node.launch import run_as_module

if __name__ == "__main__":
    run_as_module("torch", "determined.launch.torch_distributed")
