"""Settings that only plugins know; the caller passes them, for the configuration cannot import plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from msgspec import Struct, defstruct

from ._searchers import SEARCHERS
from ._storage import STORAGES

StructOf = Callable[[], type[Struct]]


@dataclass(frozen=True)
class Extensions:
    """Names of searchers, storages and plugins with settings, each with a call that returns the struct of them.

    A call is made only when a configuration names it. The structs of searchers and storages need no `name` or `type`
    of their own.
    """

    searchers: Mapping[str, StructOf] = field(default_factory=dict)
    storages: Mapping[str, StructOf] = field(default_factory=dict)
    plugins: Mapping[str, StructOf] = field(default_factory=dict)

    def searcher(self, name: str) -> type[Struct]:
        """Return the struct of the searcher `name`, tagged with it; KeyError where there is none."""
        return SEARCHERS[name] if name in SEARCHERS else tagged(self.searchers[name](), "name", name)

    def storage(self, name: str) -> type[Struct]:
        """Return the struct of the storage type `name`, tagged with it; KeyError where there is none."""
        return STORAGES[name] if name in STORAGES else tagged(self.storages[name](), "type", name)

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
