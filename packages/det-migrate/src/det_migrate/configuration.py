"""Converts configurations of every Determined version to today's keys, without their secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from det_core.config import MASK, ExperimentConfig, Extensions, from_json, masked, to_builtins
from det_core.errors import ConfigError
from det_core.support.paths import replace_file
from det_driver.config import load

from .values import read_labels

_WORDS = (
    r"secret|token|passw(?:or)?d|passphrase|credentials?|[_-]key|connection_string|registry_auth"
)
_SECRET = r"[\w-]*(?:" + _WORDS + r")(?:[_-][\w-]*)?"
_NAMED = re.compile(rf"(?i){_SECRET}")
_IN_TEXT = re.compile(
    rf"""(?i)(["']?\b{_SECRET}["']?[ \t]*[:=][ \t]*)("[^"\n]*"|'[^'\n]*'|[^\s,}}\]"']+)"""
)
_SHORT = 200
"""The length of texts whose masked form is kept, at most."""
_CREDENTIALS = ("access_key", "secret_key", "connection_string", "credential")


class Modernised(NamedTuple):
    """A configuration that det can read, and the keys of the stored one that were left out."""

    config: ExperimentConfig
    left_out: tuple[str, ...]


def modernise(
    stored: Mapping[str, Any],
    *,
    name: str,
    project: str,
    workspace: str,
    storage: Mapping[str, str],
) -> Modernised:
    """Return a stored configuration as det reads it, with the keys that it cannot read left out.

    `storage` maps the old prefix of a directory's path to the prefix that it has today.
    """
    data = json.loads(json.dumps(stored))
    data |= {
        "name": name,
        "labels": read_labels(data.get("labels")),
        "project": project,
        "workspace": workspace,
    }
    if not data.get("entrypoint"):
        data.pop("entrypoint", None)
    place = data.get("checkpoint_storage")
    if isinstance(place, dict):
        data["checkpoint_storage"] = opened_as_today(place, storage)
    if (config := _read(data)) is not None:
        return Modernised(config, ())
    return _what_can_be_read(data)


def _read(data: dict[str, Any]) -> ExperimentConfig | None:
    """Return the configuration, with old spellings converted. None where it is invalid."""
    try:
        return from_json(json.dumps(data))
    except ConfigError:
        pass
    # Old spellings are checked against what the entrypoint needs, such as a length. Nothing is
    # trained here, so they are read without an entrypoint.
    entrypoint = {"entrypoint": data["entrypoint"]} if "entrypoint" in data else {}
    rest = {key: value for key, value in data.items() if key != "entrypoint"}
    try:
        config = load(rest, extensions=Extensions(open=True), complete=False).config
        return from_json(json.dumps(to_builtins(config) | entrypoint))
    except (ConfigError, ValueError):
        return None


def _what_can_be_read(data: dict[str, Any]) -> Modernised:
    """Return a minimal configuration with each section that is valid together with it."""
    searcher = data.get("searcher")
    searcher = searcher if isinstance(searcher, dict) else {}
    common = ("smaller_is_better", "source_trial_id", "source_checkpoint_uuid")
    minimal = {"name": "single", "metric": str(searcher.get("metric") or "unknown")}
    minimal |= {key: searcher[key] for key in common if searcher.get(key) is not None}
    # Of the old spellings, those of the searcher decide what others mean.
    scale = (
        {"batches_per_step": data["batches_per_step"]}
        if _is_count(data.get("batches_per_step"))
        else {}
    )
    known: dict[str, Any] = {"searcher": minimal, **scale}
    if _read({"searcher": searcher, **scale}) is not None:
        known["searcher"] = searcher
    left_out = [] if known["searcher"] is searcher else ["searcher"]
    for key in [key for key in data if key not in known]:
        if _read({**known, key: data[key]}) is not None:
            known[key] = data[key]
        else:
            left_out.append(key)
    config = _read(known)
    if config is None:
        config = from_json(
            json.dumps({"name": data["name"], "searcher": {"name": "single", "metric": "unknown"}})
        )
        left_out = sorted(data)
    return Modernised(config, tuple(sorted(left_out)))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def opened_as_today(place: Mapping[str, Any], storage: Mapping[str, str]) -> dict[str, Any]:
    """Return a storage with today's paths, and without credentials: the environment's are used."""
    found = {key: value for key, value in place.items() if key not in _CREDENTIALS}
    if found.get("type") in ("shared_fs", "directory"):
        for key in ("host_path", "container_path"):
            if isinstance(found.get(key), str):
                found[key] = moved(found[key], storage)
    return found


def moved(path: str, storage: Mapping[str, str]) -> str:
    """Return where a directory lies today, by its longest prefix that is known to have moved."""
    for old in sorted(storage, key=len, reverse=True):
        if path == old or path.startswith(f"{old.rstrip('/')}/"):
            return storage[old].rstrip("/") + path[len(old.rstrip("/")) :]
    return path


def storage_url(config: ExperimentConfig, uuid: str) -> str:
    """Return the location of a checkpoint's files, by its experiment's configuration."""
    return place_url(
        to_builtins(config.checkpoint_storage) if config.checkpoint_storage else {}, uuid
    )


def place_url(place: Mapping[str, Any], uuid: str) -> str:
    """Return the location of a checkpoint's files in a storage, given as `checkpoint_storage`."""
    kind = place.get("type")
    if kind == "shared_fs":
        below = place.get("storage_path") or ""
        # An absolute storage_path is a path below host_path already.
        root = (
            below
            if below.startswith("/")
            else "/".join(filter(None, [place["host_path"].rstrip("/"), below]))
        )
    elif kind in ("s3", "gcs"):
        root = "/".join(
            filter(
                None, [f"{'s3' if kind == 's3' else 'gs'}://{place['bucket']}", place.get("prefix")]
            )
        )
    elif kind == "azure":
        root = f"azure://{place['container']}"
    elif kind == "hdfs":
        root = f"{place['hdfs_url']}{place['hdfs_path']}"
    else:
        root = str(place.get("container_path") or "")
    return f"{root.rstrip('/')}/{uuid}" if root else uuid


def mask_plain(value: Any, secrets: Collection[str] = (), *, named: bool = False) -> Any:
    """Return plain data with its secrets masked.

    Masked are values whose keys name a secret, values of `NAME_TOKEN=…` and of a pod's variables,
    passwords in addresses, and the given `secrets`.
    """
    if isinstance(value, dict):
        # Kubernetes writes a variable of a pod as {"name": NAME, "value": VALUE}.
        variable = str(value.get("name"))
        found = {
            key: (each, named or _names_a_secret(variable if key == "value" else key))
            for key, each in value.items()
        }
        return {
            key: mask_plain(each, secrets, named=is_named)
            for key, (each, is_named) in found.items()
        }
    if isinstance(value, list):
        return [mask_plain(each, secrets, named=named) for each in value]
    if not isinstance(value, str):
        return value
    for secret in sorted(secrets, key=len, reverse=True):
        value = value.replace(secret, MASK)
    return (
        MASK
        if named and value
        else (_mask_short(value) if len(value) <= _SHORT else _mask_words(value))
    )


# The same names, states and times are in the facts of many trials.
@lru_cache(maxsize=4096)
def _names_a_secret(name: str) -> bool:
    return _NAMED.fullmatch(name) is not None


def _mask_words(text: str) -> str:
    found: str = masked({"": text})[""]
    return found


_mask_short = lru_cache(maxsize=4096)(_mask_words)


def find_plain_secrets(value: Any) -> set[str]:
    """Return the secrets that `mask_plain` masks, to find them in other texts as well.

    Those of less than 6 characters are left out, as they may be ordinary words.
    """
    found: set[str] = set()

    def look(plain: Any, blotted: Any) -> None:
        if isinstance(plain, dict):
            for key, each in plain.items():
                look(each, blotted[key])
        elif isinstance(plain, list):
            for each, other in zip(plain, blotted, strict=True):
                look(each, other)
        elif isinstance(plain, str) and plain != blotted:
            before, _, after = blotted.partition(MASK)
            found.add(plain[len(before) : len(plain) - len(after)])

    look(value, mask_plain(value))
    return {each for each in found if len(each) >= 6}


def mask_files(code: Path, secrets: Collection[str]) -> None:
    """Mask secrets in the YAML files of a directory of code, one of which is the configuration."""
    for file in [*code.rglob("*.y*ml")] if secrets else ():
        if not file.is_file() or file.is_symlink():
            continue
        before = text = file.read_text(encoding="utf-8", errors="surrogateescape")
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, MASK)
        if text != before:
            replace_file(file, text.encode(errors="surrogateescape"))


def mask_text(text: str, secrets: Collection[str]) -> str:
    """Return a text, such as the YAML that a user wrote, with its secrets masked."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _IN_TEXT.sub(lambda match: f"{match[1]}{MASK}", text)
    return (
        str(masked({"": text})[""])
        if "\n" not in text
        else "\n".join(masked({"": line})[""] for line in text.split("\n"))
    )
