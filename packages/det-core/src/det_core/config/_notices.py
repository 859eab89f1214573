"""What a reader of the configuration should know although nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Notice:
    """One sentence for a person, and the keys that it is about."""

    message: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.message


def without_effect(keys: Iterable[str]) -> list[Notice]:
    """Name the keys that were accepted and that nothing acts on."""
    named = tuple(dict.fromkeys(keys))
    if not named:
        return []
    return [Notice(f"accepted, but without effect in det: {', '.join(named)}", named)]


def old_spellings(renamed: Iterable[tuple[str, str]]) -> list[Notice]:
    """Name the keys that were written as in older versions, and how they were read."""
    pairs = dict(renamed)
    if not pairs:
        return []
    listed = ", ".join(f"{old} as {new}" for old, new in pairs.items())
    return [Notice(f"old spellings, read as today's: {listed}", tuple(pairs))]
