"""Packages that import their public names on first use, so that importing the package is cheap.

Such a package lists its names once, under `if TYPE_CHECKING:`, one on each line: `from .module
import Name as Name`, or `from . import module as module`. Type checkers read these lines, and so
does this module.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

_LISTED = re.compile(r"^    from \.([\w.]*) import (\w+) as \2$", re.MULTILINE)


def lazy(package: str, before: Callable[[], None] = lambda: None) -> None:
    """Give a package its `__getattr__`, `__dir__` and `__all__`. Call it at the end of `__init__`.

    `before` is called before anything is imported. It can raise an error that says what is not
    installed.
    """
    module = sys.modules[package]
    loader: Any = module.__spec__ and module.__spec__.loader
    homes = {name: home for home, name in _LISTED.findall(loader.get_source(package))}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        before()
        home = importlib.import_module(f".{homes[name] or name}", package)
        value = getattr(home, name) if homes[name] else home
        setattr(module, name, value)
        return value

    public = [name for name, home in homes.items() if home]
    names = sorted(
        public, key=lambda name: (0 if name.isupper() else 1 if name[0].isupper() else 2, name)
    )
    vars(module).update(
        __getattr__=get, __dir__=lambda: sorted({*vars(module), *homes}), __all__=names
    )
