"""No thread of det dies without a word: all of them are started by `det_core.support.threads`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "packages/det-core/src/det_core/support/threads.py",
    "packages/det-node/src/det_node/agent/_tcp_relay.py",
    "packages/det-ray/src/det_ray/cluster.py",
}
"""What starts them, and what travels by value to a machine whose det-core is another.

The latter imports none.
"""
STARTS = {"Thread", "Timer", "start_new_thread"}


def test_every_thread_is_started_where_its_failure_is_known() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(ROOT.glob("packages/*/src/**/*.py"))
        if str(path.relative_to(ROOT)) not in ALLOWED
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _name(node.func) in STARTS
    }
    assert not found, "start it by det_core.support.threads.start_thread, which says how it failed"


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", None) or getattr(function, "id", "")
