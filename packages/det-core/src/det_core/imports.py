"""Importing the code of a directory, such as a checkpoint's, whatever of the same name is imported already."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

# One of each, or classes would not be what they are.
_SHARED = {"determined", "jax", "keras", "lightning", "numpy", "tensorflow", "torch"}


@contextmanager
def import_from_path(path: str | Path) -> Iterator[None]:
    """Let imports in the body find the modules of the directory `path` first, and import them anew.

    Where modules of the same names were imported from elsewhere, those are put back at the end, and the new ones are known
    to their users alone. Where there are none, the new ones stay, and the directory on `sys.path`, for imports inside functions.
    """
    code_dir = Path(path)
    theirs = _clashing(code_dir)
    before = list(sys.path)
    for name in theirs:
        del sys.modules[name]
    sys.path.insert(0, str(code_dir))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if theirs:
            sys.path[:] = before
            roots = {name.partition(".")[0] for name in theirs}
            for name in [name for name in sys.modules if name.partition(".")[0] in roots]:
                del sys.modules[name]
            sys.modules.update(theirs)


def _clashing(code_dir: Path) -> dict[str, ModuleType]:
    """Return the modules that are imported from elsewhere and have a name of the code's, with all that is below them."""
    names = {name for name in _names(code_dir) & sys.modules.keys() - _SHARED if not name.startswith("det_")}
    own = {name for name in names if not _within(sys.modules[name], code_dir)}
    return {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] in own}


def _names(code_dir: Path) -> set[str]:
    """Return the names that can be imported from a directory; a folder without `__init__.py` hides no other package."""
    files = {file.stem for file in code_dir.glob("*.py") if not file.stem.startswith("__")}
    folders = {folder for folder in code_dir.iterdir() if folder.is_dir() and folder.name.isidentifier()}
    return files | {
        folder.name for folder in folders if (folder / "__init__.py").is_file() or _is_namespace(folder.name)
    }


def _is_namespace(name: str) -> bool:
    return (
        name in sys.modules
        and getattr(sys.modules[name], "__file__", None) is None
        and name not in sys.builtin_module_names
    )


def _within(module: ModuleType, code_dir: Path) -> bool:
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", []))
    return any(Path(place).resolve().is_relative_to(code_dir.resolve()) for place in places)
