"""Names that other modules define, each imported on first access."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from det_core.support.installation import how_to_install

from ._gone import refuse


def borrow(
    module: str, lenders: Mapping[str, Mapping[str, str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a module that takes its names from other modules.

    `lenders` maps each other module to a map from the name here to the name there. `__getattr__`
    raises ImportError where the other module is a plugin that is not installed, with the command
    that installs it, and for a name that is gone, with what to use instead.
    """
    homes = {
        here: (lender, there) for lender, names in lenders.items() for here, there in names.items()
    }

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
    """Import a module of det.

    Raises ImportError with what to install for `wanted` if it is missing.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if error.name != package:
            raise
        distribution = package.replace("_", "-")
        extra = "cpu" if distribution in ("det-keras", "det-estimator") else None
        raise ImportError(
            f"{wanted} needs {distribution}; run: {how_to_install(distribution, extra)}"
        ) from None


def same(*names: str) -> dict[str, str]:
    """Return a map of names to themselves, for `borrow`."""
    return {name: name for name in names}
