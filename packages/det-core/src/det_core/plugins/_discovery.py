"""The entry points of every installed distribution, and whether this core is new enough for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from ..errors import PluginError

ENTRY_POINT_GROUP = "det"
OURS = ("det-core", "det-driver")
"""The distributions whose records come first, so that a stranger's cannot take their names."""
_CORE = re.compile(r"det[-_.]core(?![\w.-])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Found:
    """An entry point and the distribution that brings it; `requires` are the requirements of that."""

    entry: EntryPoint
    distribution: str
    version: str
    requires: tuple[str, ...] = ()


def discover() -> Iterator[Found]:
    """Find the entry points of every installed distribution, in an order that does not depend on the file system."""
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=_order):
        distribution = entry.dist
        if distribution is None:
            yield Found(entry=entry, distribution="unknown", version="")
        else:
            requires = tuple(distribution.requires or ())
            yield Found(entry=entry, distribution=distribution.name, version=distribution.version, requires=requires)


def _order(entry: EntryPoint) -> tuple[bool, str, str]:
    return entry.dist is None or entry.dist.name not in OURS, entry.name, entry.value


def check_core(found: Found, version: str) -> None:
    """Raise PluginError where a distribution asks for another det-core than this, as pip may have left it."""
    for text in found.requires:
        if _CORE.match(text):
            from packaging.requirements import InvalidRequirement, Requirement

            try:
                needed = Requirement(text)
            except InvalidRequirement as error:
                raise PluginError(
                    f"{found.distribution} {found.version} has an unreadable requirement, {text!r}"
                ) from error
            if (needed.marker is None or needed.marker.evaluate({"extra": ""})) and not needed.specifier.contains(
                version, prereleases=True
            ):
                raise PluginError(
                    f"it requires det-core{needed.specifier}, but det-core {version} is installed; "
                    f"try: pip install --upgrade det-core {found.distribution}"
                )
