"""From an entrypoint of the form `module:Class` to the class."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path

from .errors import EntrypointError


def load_trial(entrypoint: str, code_dir: Path) -> type:
    """Import the class that `entrypoint` names, from `code_dir` or wherever Python finds its module.

    `code_dir` is put at the head of `sys.path`. Raises EntrypointError when there is no such module or class; what the
    module itself raises while it is imported passes through.
    """
    module_name, _, path = entrypoint.partition(":")
    if str(code_dir) not in sys.path:
        sys.path.insert(0, str(code_dir))
        importlib.invalidate_caches()
    _must_exist(module_name, entrypoint, code_dir)
    found: object = importlib.import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            classes = ", ".join(n for n, v in vars(found).items() if inspect.isclass(v) and v.__module__ == module_name)
            raise EntrypointError(
                f"entrypoint {entrypoint!r}: {module_name} has no {name!r}; it defines: {classes or 'no class'}"
            )
        found = getattr(found, name)
    if not inspect.isclass(found):
        raise EntrypointError(f"entrypoint {entrypoint!r} is a {type(found).__name__}; name a trial class")
    return found


def _must_exist(module_name: str, entrypoint: str, code_dir: Path) -> None:
    try:
        spec = importlib.util.find_spec(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        spec = None
    if spec is None:
        files = ", ".join(sorted(p.name for p in code_dir.glob("*.py"))) or "no Python files"
        raise EntrypointError(f"entrypoint {entrypoint!r}: no module named {module_name!r} in {code_dir} (it has {files})")
