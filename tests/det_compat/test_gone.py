"""Names that are gone say what to use instead, wherever they are asked for.

And the documentation has the same table.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import determined
from determined._gone import GONE, METHODS, ROWS

PAGE = Path(__file__).parents[2] / "docs" / "from-determined.md"
PLUGINS = {"determined.keras": "tensorflow", "determined.pytorch": "torch"}


def refused(code: str) -> str:
    """Return the ImportError that code ends with."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    *_, last = done.stderr.splitlines()
    assert last.startswith("ImportError: "), done.stderr
    return last.removeprefix("ImportError: ")


@pytest.mark.parametrize("name", GONE)
def test_each_is_an_import_error_with_the_way_out(name: str) -> None:
    module, _, last = name.rpartition(".")
    if needed := PLUGINS.get(module):
        pytest.importorskip(needed)
    message = f"{name} is not in det; {GONE[name]}"
    with pytest.raises(ImportError) as caught:
        exec(f"from {module} import {last}", {})
    assert str(caught.value) == message


@pytest.mark.process
@pytest.mark.parametrize(
    "line",
    [
        "from determined.searcher import SearchMethod",
        "import determined.experimental.core_v2 as core_v2",
        "from determined.common.experimental import checkpoint",
        "import determined as det; det.searcher",
    ],
)
def test_modules_that_are_gone_say_so_however_they_are_imported(line: str) -> None:
    assert "is not in det; " in refused(line)


def test_what_never_was_is_an_ordinary_import_error() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'determined.sercher'"):
        exec("import determined.sercher", {})
    assert find_spec("determined.sercher") is None
    assert not hasattr(determined, "sercher")


def test_the_page_has_the_same_table() -> None:
    rows = [
        f"| `{module}.{first}`{''.join(f', `{name}`' for name in others)} | {instead} |"
        for module, (first, *others), instead in (*ROWS, *METHODS)
    ]
    table = PAGE.read_text(encoding="utf-8").partition("## What is gone")[2]
    assert [line for line in table.splitlines() if line.startswith("| `")] == rows
