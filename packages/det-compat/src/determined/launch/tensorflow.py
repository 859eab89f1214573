"""`python3 -m determined.launch.tensorflow`: what `det launch tensorflow` does, where training runs."""

from __future__ import annotations

from det_core.launch import run_as_module

if __name__ == "__main__":
    run_as_module("tensorflow", "determined.launch.tensorflow")
