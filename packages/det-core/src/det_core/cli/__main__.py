"""`python -m det_core.cli`."""

from __future__ import annotations

from ._main import main

main()
