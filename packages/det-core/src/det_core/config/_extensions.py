"""Settings that only plugins know; the caller passes them, for the configuration cannot import plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct, defstruct

from ._engines import ENGINES, EngineConfig, UnknownEngine
from ._searchers import SEARCHERS, SearcherConfig, UnknownSearcher
from ._storage import STORAGES, StorageConfig, UnknownStorage

StructOf = Callable[[], type[Struct]]


class Section(NamedTuple):
    """A section whose keys depend on a name in it: the key of that name, what all have in common, det's own, and a stranger's.

    With `nameless`, what all have in common is a section of its own where there is no name.
    """

    tag: str
    common: type[Struct]
    ours: Mapping[str, type[Struct]]
    unknown: type[Struct]
    nameless: bool = False


SECTIONS = {
    "searcher": Section("name", SearcherConfig, SEARCHERS, UnknownSearcher),
    "checkpoint_storage": Section("type", StorageConfig, STORAGES, UnknownStorage, nameless=True),
    "engine": Section("name", EngineConfig, ENGINES, UnknownEngine),
}


@dataclass(frozen=True)
class Extensions:
    """Names of searchers, storages, engines and plugins with settings, each with a call that returns the struct of them.

    A call is made only when a configuration names it. The structs of searchers, storages and engines need no `name` or `type`
    of their own. With `open`, a name that is not among them is no error: its settings are kept as they are, so that a
    stored configuration can be looked at without the plugins that it was made with.
    """

    searchers: Mapping[str, StructOf] = field(default_factory=dict)
    storages: Mapping[str, StructOf] = field(default_factory=dict)
    engines: Mapping[str, StructOf] = field(default_factory=dict)
    plugins: Mapping[str, StructOf] = field(default_factory=dict)
    open: bool = False

    def struct(self, section: str, name: object) -> type[Struct] | None:
        """Return the struct of `name` in one of `SECTIONS`, tagged with it; None where there is none."""
        tag, _, ours, unknown, _ = SECTIONS[section]
        theirs = self._theirs(section)
        if not isinstance(name, str):
            return None
        if name in ours:
            return ours[name]
        if name in theirs:
            return tagged(theirs[name](), tag, name)
        return tagged(unknown, tag, name) if self.open else None

    def names(self, section: str) -> tuple[str, ...]:
        """Return all names that a section may have, in order."""
        return tuple(sorted({*SECTIONS[section].ours, *self._theirs(section)}))

    def _theirs(self, section: str) -> Mapping[str, StructOf]:
        return {"searcher": self.searchers, "checkpoint_storage": self.storages, "engine": self.engines}[section]


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
