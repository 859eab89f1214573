"""`python3 -m determined.launch.torch_distributed`: what `det launch torch` does, where training runs."""

from __future__ import annotations

from det_core.launch import run_as_module

if __name__ == "__main__":
    run_as_module("torch", "determined.launch.torch_distributed")
