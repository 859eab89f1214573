"""Imports the code of a directory, such as a checkpoint's.

It does so even if other modules of the same names are loaded.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

# These are never imported a second time: their classes would differ from those in use.
_SHARED = {"determined", "jax", "keras", "lightning", "numpy", "tensorflow", "torch"}


@contextmanager
def import_from_path(path: str | Path) -> Iterator[None]:
    """Make imports in the body search the directory `path` first, and import its modules again.

    If modules of the same names were imported from elsewhere, they are restored at the end, and
    only code that imported the new ones has them. Otherwise the new modules stay, and so does the
    directory on `sys.path`, for imports inside functions.
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


def is_installed(filename: str) -> bool:
    """Return whether a file of Python code is in a folder `site-packages` or `dist-packages`.

    Python's own library is not. Neither is a package that is installed as editable, which counts as
    a user's code.
    """
    # Debian's packages are in dist-packages.
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(filename).parts)


def is_library_module(name: str) -> bool:
    """Return whether a module is in Python's own library, or is imported from a package.

    A module of a package that is not imported counts as a user's.
    """
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    return is_installed(getattr(sys.modules.get(name), "__file__", None) or "")


def _clashing(code_dir: Path) -> dict[str, ModuleType]:
    """Return the modules imported from elsewhere that have a name of the code's.

    Their submodules are included.
    """
    names = {
        name
        for name in _names(code_dir) & sys.modules.keys() - _SHARED
        if not name.startswith("det_")
    }
    own = {name for name in names if not _within(sys.modules[name], code_dir)}
    return {
        name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] in own
    }


def _names(code_dir: Path) -> set[str]:
    """Return the names that can be imported from a directory.

    A folder without `__init__.py` counts only if a namespace package of its name is loaded, as it
    does not hide a regular package.
    """
    files = {file.stem for file in code_dir.glob("*.py") if not file.stem.startswith("__")}
    folders = {
        folder for folder in code_dir.iterdir() if folder.is_dir() and folder.name.isidentifier()
    }
    return files | {
        folder.name
        for folder in folders
        if (folder / "__init__.py").is_file() or _is_namespace(folder.name)
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
