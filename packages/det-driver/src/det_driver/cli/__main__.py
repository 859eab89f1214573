"""`python -m det_driver.cli`."""

from __future__ import annotations

from ._main import main

main()
