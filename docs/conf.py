"""Sphinx: `nox -s docs`."""

from __future__ import annotations

import tomllib
from pathlib import Path

with (Path(__file__).parents[1] / "packages/det-core/pyproject.toml").open("rb") as file:
    release = tomllib.load(file)["project"]["version"]

project = "det"
author = "The det authors"
html_title = f"det {release}"
html_theme = "furo"
extensions = ["myst_parser"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
nitpicky = True
