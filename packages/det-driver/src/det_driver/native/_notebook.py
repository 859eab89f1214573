"""Notebooks as scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from det_core.errors import DetError

SUFFIX = "__det__.py"
_MAGIC = ("!", "%")


def script_of(notebook: Path) -> str:
    """Return the code cells of a notebook as a script, without the lines for the shell and for IPython.

    Raises DetError for a file that is no notebook.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        codes = [_text(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DetError(
            f"{notebook} cannot be read as a notebook: {type(error).__name__}; give an .ipynb file"
        ) from error
    return "\n\n".join(_plain(code) for code in codes) + "\n"


def _text(source: Any) -> str:
    return source if isinstance(source, str) else "".join(source)


def _plain(code: str) -> str:
    if code.lstrip().startswith("%%"):
        return ""  # a cell in another language, or for another program
    return "\n".join(line for line in code.splitlines() if not line.lstrip().startswith(_MAGIC))
