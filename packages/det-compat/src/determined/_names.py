"""Names that live elsewhere, each imported when it is first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ._gone import refuse


def borrow(
    module: str, lenders: Mapping[str, Mapping[str, str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a module whose names other modules lend.

    `lenders` maps each of those to what it lends: the name here, and there. What they return raises ImportError with the
    command that installs it where the lender is a plugin that is missing, and for a name that is gone, with what to use instead.
    """
    homes = {here: (lender, there) for lender, names in lenders.items() for here, there in names.items()}

    def get(name: str) -> Any:
        if name not in homes:
            refuse(f"{module}.{name}")
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        lender, there = homes[name]
        value = getattr(plugin(lender, f"{module}.{name}"), there)
        setattr(sys.modules[module], name, value)
        return value

    return get, lambda: sorted(homes)


def plugin(name: str, wanted: str) -> Any:
    """Import a module of det's; ImportError says what to install for `wanted` where its package is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name != package:
            raise
        raise ImportError(f"{wanted} needs {package.replace('_', '-')}; run: pip install {_extra(package)}") from None


def same(*names: str) -> dict[str, str]:
    """Return names that are lent under their own."""
    return {name: name for name in names}


def _extra(package: str) -> str:
    return {"det_keras": "'det-keras[cpu]'", "det_estimator": "'det-estimator[cpu]'"}.get(
        package, package.replace("_", "-")
    )
