"""Reads the requirements that a configuration names: a list, or a file of another tool."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from det_core.errors import ConfigError
from det_core.support.paths import expand_user

_SCRIPT = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")


class Requested(NamedTuple):
    """The requirements of an experiment.

    `lines` are those of a requirements.txt. `source` is other text that the solution depends on.
    `python` is the version that a script requires.
    """

    lines: tuple[str, ...]
    source: str = ""
    python: str = ""


def read(
    requirements: tuple[str, ...] | str, directory: Path, export: Callable[[Path], str]
) -> Requested:
    """Return the requirements. `export` returns the lines of a uv.lock.

    Raises ConfigError where a file cannot be read.
    """
    if not isinstance(requirements, str):
        return Requested(tuple(requirements))
    file = (directory / expand_user(requirements)).absolute()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"environment.requirements is {requirements!r}: {file}: {why}; name a file in the"
            f" directory of the code, or give a list: [{requirements}]"
        ) from None
    try:
        if file.name == "uv.lock":
            return Requested(tuple(export(file).splitlines()), text)
        if file.name.startswith("pylock.") and file.suffix == ".toml":
            return Requested(
                tuple(_line(each) for each in tomllib.loads(text).get("packages", ())), text
            )
        if file.suffix == ".py":
            return _of_script(file, text)
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise ConfigError(
            f"environment.requirements is {requirements!r}, which cannot be read: {error};"
            " correct it"
        ) from error
    return Requested((f"-r {file}",), text)


def _of_script(file: Path, text: str) -> Requested:
    """Read the metadata in a script's comments (PEP 723)."""
    found = _SCRIPT.search(text)
    if found is None:
        raise ConfigError(
            f"environment.requirements is {file.name!r}, which has no block of metadata; begin it"
            " with the lines '# /// script', '# dependencies = [\"...\"]' and '# ///', or give a"
            " list"
        )
    lines = (
        line[2:] if line.startswith("# ") else line[1:] for line in found["content"].splitlines()
    )
    metadata = tomllib.loads("\n".join(lines))
    return Requested(
        tuple(metadata.get("dependencies", ())),
        found["content"],
        metadata.get("requires-python", ""),
    )


def _line(package: dict[str, Any]) -> str:
    """Return the requirement for an entry of a pylock.toml."""
    name, marker = package["name"], f" ; {package['marker']}" if package.get("marker") else ""
    if vcs := package.get("vcs"):
        return f"{name} @ {vcs['type']}+{vcs['url']}@{vcs['commit-id']}{marker}"
    if place := package.get("archive", package.get("directory")):
        return f"{name} @ {place.get('url') or Path(place['path']).absolute().as_uri()}{marker}"
    return f"{name}=={package['version']}{marker}"
