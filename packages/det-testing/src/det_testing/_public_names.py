"""Whether a package keeps to what det-core and det-driver promise to keep."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

HOUSES = ("det_core", "det_driver")


def private_imports(module: str) -> list[str]:
    """Return each import of a private name of det-core or det-driver in the package that a module is of, as `file:line: name`.

    A module that is of no package, but in a folder beside others, stands for itself.
    """
    package = module.partition(".")[0]
    if package in HOUSES:
        return []
    found = importlib.util.find_spec(package)
    of_a_package = found is not None and found.origin is not None
    return [
        f"{file.name}:{line}: {name}"
        for file in _files(package if of_a_package else module)
        for line, name in _imported(ast.parse(file.read_text(encoding="utf-8")))
        if name.split(".")[0] in HOUSES and any(_is_private(part) for part in name.split("."))
    ]


def _files(package: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return
    for place in spec.submodule_search_locations or ():
        yield from sorted(Path(place).rglob("*.py"))
    if not spec.submodule_search_locations and spec.origin:
        yield Path(spec.origin)


def _imported(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _is_private(part: str) -> bool:
    return part.startswith("_") and not part.endswith("__")
