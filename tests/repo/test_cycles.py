"""No module needs itself by way of others, imports for typing and inside of functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"


def modules() -> dict[str, Path]:
    """Return the modules of all packages, by name."""
    found = {}
    for source in sorted(PACKAGES.glob("*/src")):
        for file in sorted(source.rglob("*.py")):
            parts = file.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a module imports anywhere in its text."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *(node.module.split(".") if node.module else [])])
            inner = [f"{origin}.{alias.name}" for alias in node.names]
            yield from (each for each in inner if each in known)
            if origin in known and not all(each in known for each in inner):
                yield origin


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            members = stack[stack.index(node) :]
            del stack[-len(members) :]
            if len(members) > 1:
                found.append(sorted(members))

    for node in graph:
        if node not in order:
            visit(node)
    return found


@pytest.mark.parametrize("package", sorted({name.partition(".")[0] for name in modules()}))
def test_no_module_needs_itself(package: str) -> None:
    known = {name: file for name, file in modules().items() if name.partition(".")[0] == package}
    graph = {name: set(imported(name, file, known)) - {name} for name, file in known.items()}
    assert cycles(graph) == []
