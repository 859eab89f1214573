"""What a field's annotation says beside its type: each is a `msgspec.Meta` for `Annotated`."""

from __future__ import annotations

from msgspec import Meta

CLUSTER = Meta(extra={"honoured": "no"})
"""Accepted, but only the master of a cluster could act on it."""

RETIRED = Meta(extra={"honoured": "no", "retired": True})
"""Accepted for the sake of old files; nothing acts on it any more."""

SECRET = Meta(extra={"secret": True})
"""Never shown: neither in a printed configuration nor in an error."""

REST = Meta(extra={"rest": True})
"""A map that takes in the keys that no other field of its struct has."""


def partly(how: str) -> Meta:
    """Honoured in part; `how` is what the reference page says of it."""
    return Meta(extra={"honoured": how})


def needed(way_out: str) -> Meta:
    """Required of a complete configuration; `way_out` ends the error when it is missing."""
    return Meta(extra={"needed": way_out})


def expects(phrase: str) -> Meta:
    """Use `phrase` for what would be right, instead of what the type alone suggests."""
    return Meta(extra={"expects": phrase})


def kind(name: str) -> Meta:
    """Read and merge by the rules of `name`: hyperparameters, searcher, checkpoint_storage, plugins, length, period."""
    return Meta(extra={"kind": name})


def joined(key: str | None = None) -> Meta:
    """In a merge, put the template's items before the user's; an item of the same `key` (or an equal one) gives way."""
    return Meta(extra={"joined": key})
