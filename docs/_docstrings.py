"""Docstrings, which are written as Markdown is, for Sphinx, which reads reStructuredText."""

from __future__ import annotations

import re
from typing import Any

# In reStructuredText these begin a substitution, emphasis or a reference that nobody meant, outside
# of `code`.
_MEANT_AS_IT_IS = re.compile(r"`[^`]*`|(\*+|\||_(?=\W|$))")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")


def _process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape what only reStructuredText would read, and part lists from the sentence above them."""
    found: list[str] = []
    for line in lines:
        bullet = _ITEM.match(line)
        head = bullet[0] if bullet else ""
        plain = _MEANT_AS_IT_IS.sub(
            lambda m: m[0] if m[1] is None else "".join(f"\\{c}" for c in m[1]), line[len(head) :]
        )
        if (
            bullet
            and found
            and found[-1].strip()
            and not _ITEM.match(found[-1])
            and not found[-1].startswith(" ")
        ):
            found.append("")
        found.append(head + plain)
    lines[:] = found


def setup(app: Any) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
