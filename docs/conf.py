"""Sphinx: `nox -s docs`."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import _frameworks

_frameworks.install()
ROOT = Path(__file__).parents[1]

with (ROOT / "packages/det-core/pyproject.toml").open("rb") as file:
    release = tomllib.load(file)["project"]["version"]

project = "det"
author = "The det authors"
html_title = f"det {release}"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "_docstrings"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
nitpicky = True
# Signatures name types of frameworks, and private ones, that have no page here.
nitpick_ignore_regex = [("py:.*", ".*")]

# What a page of the API says is in the docstrings of the names that a package lists as public.
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "show-inheritance": True,
    "member-order": "bysource",
}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False
default_role = "code"
suppress_warnings = ["config.cache"]

# A prompt is for reading.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
