"""No thread of det dies without a word: all of them are started by `det_core.support.threads`."""

from __future__ import annotations

import ast
from functools import cache
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
UNHANDLED = {
    "det-account-limit": "the process of the user ends by itself, too",
    "det-alert-": "the attempt has a deadline, after which it is made again",
    "det-browser": "the address is printed, too",
    "det-end": "it does nothing but end the process",
    "det-launch-show": "what it shows is for people alone",
    "det-notebook": "the notebook runs, and its command is interrupted by whoever waits",
    "det-observer-": "the call has a deadline",
    "det-origin": "the record is complete without it",
    "det-profiler": "only measurements of the machine are lost",
    "det-recording": "it catches all errors, and says that the record ends",
    "det-sending": "the records stay in the home, and it says that they are not sent",
    "det-server-recordings": "the next request starts another one",
    "det-rendezvous": "the ranks have a deadline to meet",
    "det-saving": "it catches all errors, and the loop raises them",
    "det-stdin": "it closes the connection when it ends",
    "det-stdout": "it closes the connection when it ends",
    "det-terminal": "a shell without it ends after 30 seconds",
    "det-terminal-in": "the shell ends with the connection, which it closes",
    "det-terminal-out": "the shell ends with the connection, which it closes",
}
"""Threads whose failure is only printed, and why nothing waits for them for ever."""
POOLS = {
    "packages/det-core/src/det_core/checkpoint/_files.py",
    "packages/det-driver/src/det_driver/cli/_drive.py",
    "packages/det-driver/src/det_driver/cli/_plugins.py",
    "packages/det-driver/src/det_driver/tensorboard.py",
    "packages/det-estimator/src/det_estimator/experimental.py",
    "packages/det-keras/src/det_keras/data/_sequence.py",
    "packages/det-testing/src/det_testing/_storage_suite.py",
}
"""Who has a pool of threads: the result of each call is awaited, or the call catches all errors."""


@cache
def calls() -> list[tuple[str, ast.Call]]:
    """Return all calls, and all classes' bases as calls, each with its file."""
    return [
        (str(path.relative_to(ROOT)), each)
        for path in sorted(ROOT.glob("packages/*/src/**/*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for each in _calls(node)
    ]


def _calls(node: ast.AST) -> list[ast.Call]:
    if isinstance(node, ast.ClassDef):
        return [ast.copy_location(ast.Call(base, [], []), base) for base in node.bases]
    return [node] if isinstance(node, ast.Call) else []


def test_every_thread_is_started_where_its_failure_is_known() -> None:
    found = {
        f"{file}:{call.lineno}"
        for file, call in calls()
        if file not in ALLOWED and _name(call.func) in STARTS
    }
    assert not found, "start it by det_core.support.threads.start_thread, which says how it failed"


def test_every_failure_of_a_thread_is_handled_or_listed_here() -> None:
    found = {
        _text(next(each.value for each in call.keywords if each.arg == "name"))
        for _, call in calls()
        if _name(call.func) == "start_thread"
        and not any(each.arg == "failed" for each in call.keywords)
    }
    assert found == set(UNHANDLED), "give it failed=, or say why nothing waits for it for ever"


def test_pools_of_threads_are_known() -> None:
    found = {file for file, call in calls() if _name(call.func) == "ThreadPoolExecutor"}
    assert found == POOLS, "await the result of each call, or catch all errors in it"


def _text(name: ast.expr) -> str:
    """Return a name, of an f-string the part before the first value."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    assert isinstance(first, ast.Constant)
    return str(first.value)


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", None) or getattr(function, "id", "")
