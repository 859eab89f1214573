"""Settings that only plugins know.

The caller passes them, as this package cannot import plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from msgspec import Struct, defstruct

from ._engines import ENGINES, EngineConfig, UnknownEngine
from ._searchers import SEARCHERS, Combined, SearcherConfig, UnknownSearcher
from ._storage import STORAGES, StorageConfig, UnknownStorage

StructOf = Callable[[], type[Struct]]


class Section(NamedTuple):
    """A section of the configuration whose keys depend on a name in it.

    - `tag`: the key of the name.
    - `common`: the struct that all names share.
    - `ours`: det's own structs by name.
    - `unknown`: the struct of other names.
    - `nameless`: the struct of a section without a name. It must have one of the keys `signs`, if
      there are any.
    """

    tag: str
    common: type[Struct]
    ours: Mapping[str, type[Struct]]
    unknown: type[Struct]
    nameless: type[Struct] | None = None
    signs: tuple[str, ...] = ()


SECTIONS = {
    "searcher": Section(
        "name", SearcherConfig, SEARCHERS, UnknownSearcher, Combined, ("sampler", "schedule")
    ),
    "checkpoint_storage": Section("type", StorageConfig, STORAGES, UnknownStorage, StorageConfig),
    "engine": Section("name", EngineConfig, ENGINES, UnknownEngine),
}


@dataclass(frozen=True)
class Extensions:
    """Names of searchers, storages, engines and plugins, with functions that return their structs.

    A function is called only when a configuration names it. The structs of searchers, storages and
    engines need no `name` or `type` of their own. With `open`, an unknown name is not an error: its
    settings are kept unchanged, so that a stored configuration can be read without its plugins.
    """

    searchers: Mapping[str, StructOf] = field(default_factory=dict)
    storages: Mapping[str, StructOf] = field(default_factory=dict)
    engines: Mapping[str, StructOf] = field(default_factory=dict)
    plugins: Mapping[str, StructOf] = field(default_factory=dict)
    open: bool = False

    def struct(self, section: str, name: object) -> type[Struct] | None:
        """Return the struct of `name` in one of `SECTIONS`, with the name as its tag, or None."""
        tag, _, ours, unknown, *_ = SECTIONS[section]
        theirs = self._theirs(section)
        if not isinstance(name, str):
            return None
        if name in ours:
            return ours[name]
        if name in theirs:
            return tagged(theirs[name](), tag, name)
        return tagged(unknown, tag, name) if self.open else None

    def names(self, section: str) -> tuple[str, ...]:
        """Return all names that a section may have, sorted."""
        return tuple(sorted({*SECTIONS[section].ours, *self._theirs(section)}))

    def _theirs(self, section: str) -> Mapping[str, StructOf]:
        return {
            "searcher": self.searchers,
            "checkpoint_storage": self.storages,
            "engine": self.engines,
        }[section]


@cache
def tagged(struct: type[Struct], field: str, tag: str) -> type[Struct]:
    """Return a subclass of `struct` with its name as the tag, or `struct` if it has one already."""
    config = struct.__struct_config__
    if (config.tag_field, config.tag) == (field, tag) or field in struct.__struct_fields__:
        return struct
    namespace: dict[str, Any] = {field: property(lambda _: tag), "__doc__": struct.__doc__}
    derived: type[Struct] = defstruct(
        struct.__name__,
        [],
        bases=(struct,),
        namespace=namespace,
        module=struct.__module__,
        tag_field=field,
        tag=tag,
    )
    return derived
