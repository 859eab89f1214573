"""Settings that only plugins know; the caller passes them, for the configuration cannot import plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from msgspec import Struct, defstruct

from ._searchers import SEARCHERS, UnknownSearcher
from ._storage import STORAGES, UnknownStorage

StructOf = Callable[[], type[Struct]]


@dataclass(frozen=True)
class Extensions:
    """Names of searchers, storages and plugins with settings, each with a call that returns the struct of them.

    A call is made only when a configuration names it. The structs of searchers and storages need no `name` or `type`
    of their own. With `open`, a name that is not among them is no error: its settings are kept as they are, so that a
    stored configuration can be looked at without the plugins that it was made with.
    """

    searchers: Mapping[str, StructOf] = field(default_factory=dict)
    storages: Mapping[str, StructOf] = field(default_factory=dict)
    plugins: Mapping[str, StructOf] = field(default_factory=dict)
    open: bool = False

    def searcher(self, name: str) -> type[Struct] | None:
        """Return the struct of the searcher `name`, tagged with it; None where there is none."""
        return self._find(name, "name", SEARCHERS, self.searchers, UnknownSearcher)

    def storage(self, name: str) -> type[Struct] | None:
        """Return the struct of the storage type `name`, tagged with it; None where there is none."""
        return self._find(name, "type", STORAGES, self.storages, UnknownStorage)

    def _find(
        self,
        name: str,
        tag: str,
        ours: Mapping[str, type[Struct]],
        theirs: Mapping[str, StructOf],
        unknown: type[Struct],
    ) -> type[Struct] | None:
        if name in ours:
            return ours[name]
        if name in theirs:
            return tagged(theirs[name](), tag, name)
        return tagged(unknown, tag, name) if self.open else None

    def searcher_names(self) -> list[str]:
        """Return the names of all searchers, in order."""
        return sorted({*SEARCHERS, *self.searchers})

    def storage_names(self) -> list[str]:
        """Return the names of all storage types, in order."""
        return sorted({*STORAGES, *self.storages})


@cache
def tagged(struct: type[Struct], field: str, tag: str) -> type[Struct]:
    """Return `struct`, derived so that it carries its name, unless it does so already."""
    config = struct.__struct_config__
    if (config.tag_field, config.tag) == (field, tag) or field in struct.__struct_fields__:
        return struct
    namespace: dict[str, Any] = {field: property(lambda _: tag), "__doc__": struct.__doc__}
    derived: type[Struct] = defstruct(
        struct.__name__, [], bases=(struct,), namespace=namespace, module=struct.__module__, tag_field=field, tag=tag
    )
    return derived
