"""What a new plugin is called, everywhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

from det_core.errors import DetError

_PREFIX = "det-"
_OURS = {"core", "plugin", "plugins"}


@dataclass(frozen=True, kw_only=True)
class Names:
    """One name in its four forms: `my-thing`, `det-my-thing`, `det_my_thing` and `MyThing`."""

    name: str

    @classmethod
    def of(cls, given: str) -> Names:
        """Take `my-thing` or `det-my-thing`. Raises DetError for what cannot be the name of a package."""
        name = given.removeprefix(_PREFIX)
        if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
            near = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", given).lower()).strip(
                "-0123456789"
            )
            example = near.removeprefix(_PREFIX) or "my-plugin"
            raise DetError(
                f"{given!r} cannot be the name of a plugin; use lower-case letters, digits and hyphens, such as {example!r}"
            )
        if name in _OURS:
            raise DetError(f"{given!r} is a name of det's own; give the plugin another")
        return cls(name=name)

    @property
    def distribution(self) -> str:
        """What is installed."""
        return f"{_PREFIX}{self.name}"

    @property
    def package(self) -> str:
        """What is imported."""
        return self.distribution.replace("-", "_")

    @property
    def class_(self) -> str:
        """What its classes begin with."""
        return "".join(part.capitalize() for part in self.name.split("-"))
