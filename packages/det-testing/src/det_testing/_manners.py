"""Checks of a plugin besides its training: its imports, their cost, and leftovers."""

from __future__ import annotations

import ast
import importlib.util
import json
import multiprocessing
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from det_core.hooks import discover
from det_core.hooks.records import Framework

HOUSES = ("det_core", "det_node", "det_driver")
_PRIVATE = re.compile(r"\._(?!\w*__(\.|$))")


def private_imports(module: str) -> list[str]:
    """Return each import of a private name of these houses in the package that a module is of.

    The format is `file:line: name`. A module without a package stands for itself.
    """
    if module.partition(".")[0] in HOUSES:
        return []
    return [
        f"{file.name}:{line}: {name}"
        for file in _sources(module)
        for line, name in _imported(ast.parse(file.read_text(encoding="utf-8")))
        if name.split(".")[0] in HOUSES and _PRIVATE.search(name)
    ]


def _sources(module: str) -> list[Path]:
    package = importlib.util.find_spec(module.partition(".")[0])
    spec = package if package and package.origin else importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return []
    return (
        sorted(Path(spec.origin).parent.rglob("*.py"))
        if spec.submodule_search_locations
        else [Path(spec.origin)]
    )


def _imported(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def hooks_of(framework: Framework) -> str:
    """Return the name of the installed module that registers the framework."""
    for found in discover():
        module = found.entry.load()
        register = getattr(module, "det_frameworks", None)
        if register is not None and framework.name in {record.name for record in register()}:
            return found.entry.module
    raise LookupError(
        f"no entry point registers {framework.name!r}; install the plugin, or override `hooks`"
    )


def imported_by(module: str) -> set[str]:
    """Return the names of all modules in a new process that has imported this one."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise ImportError(
            f"{module} cannot be imported by itself: {done.stderr.strip().splitlines()[-1]}"
        )
    return set(json.loads(done.stdout))


def heavy_modules(framework: Framework) -> set[str]:
    """Return the modules that hooks must not import: their adapter and its requirements."""
    required = {canonicalize_name(Requirement(need).name) for need in framework.requires}
    packages = packages_distributions().items()
    modules = {
        module
        for module, distributions in packages
        if required & set(map(canonicalize_name, distributions))
    }
    return modules | {framework.load().__module__}


def leftovers() -> set[str]:
    """Return the names of this process's threads, children, files, sockets and pipes."""
    found = {f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate()}
    found |= {f"process {child.pid}" for child in multiprocessing.active_children()}
    for task in Path("/proc/self/task").glob("*/children"):
        found |= {f"process {pid}" for pid in task.read_text().split()}
    for descriptor in Path("/proc/self/fd").glob("*"):
        # The descriptor that lists the others is gone by then.
        with suppress(FileNotFoundError):
            found.add(f"file {descriptor.name}: {os.readlink(descriptor)}")
    return found
