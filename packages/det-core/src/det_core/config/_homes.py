"""Which section a key belongs to, for those who wrote it a level too high."""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from ._experiment import ExperimentConfig
from ._searchers import SEARCHERS
from ._storage import STORAGES
from ._types import fields_of, is_struct

_BY_KIND = {"searcher": SEARCHERS, "checkpoint_storage": STORAGES}


@cache
def homes() -> dict[str, str]:
    """Return, by key, the section of the configuration that has it."""
    found: dict[str, str] = {}
    for section, field in fields_of(ExperimentConfig).items():
        structs: list[type[Struct]] = [arm for arm in field.type.arms if is_struct(arm)]
        structs += _BY_KIND.get(field.type.marks.get("kind", ""), {}).values()
        for struct in structs if "honoured" not in field.type.marks else ():
            for key in fields_of(struct):
                found.setdefault(key, section)
    return found
