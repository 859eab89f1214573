"""Projects in the style of Determined's users."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(det: Any) -> Write:
    """Write files into the project: `write(train__py=..., const__yaml=...)`."""

    def write(**files: str) -> Path:
        for name, text in files.items():
            det.cwd.joinpath(name.replace("__", ".")).write_text(textwrap.dedent(text))
        cwd: Path = det.cwd
        return cwd

    return write
