"""Packages for plugins of one's own, written from templates that work as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from det_core.errors import DetError

from . import __version__

_PREFIX = "det-"
_OURS = {"core", "plugin", "plugins"}
_SUFFIX = ".in"  # so that no tool takes a template for what it becomes


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


@dataclass(frozen=True, kw_only=True)
class _Kind:
    summary: str
    houses: tuple[str, ...] = ("det-core",)
    needs: tuple[str, ...] = ()
    entry: str = ""


KINDS = {
    "framework": _Kind(summary="Trains models of {name} with det."),
    "searcher": _Kind(
        summary="A searcher for det: which trials to make, and how long to train each.",
        houses=("det-core", "det-driver"),
        needs=("msgspec>=0.18",),
    ),
    "storage": _Kind(summary="A place where det keeps checkpoints."),
    "engine": _Kind(summary="A place where det executes runs.", houses=("det-core", "det-driver")),
    "observer": _Kind(
        summary="Hears of det's experiments and passes on what it hears.", needs=("msgspec>=0.18",), entry=":plugin"
    ),
}
"""What a plugin may be, with what its package says of itself, imports of det, needs besides, and has as its entry point."""


def write_plugin(names: Names, kind: str, parent: Path) -> list[Path]:
    """Write the package of a plugin into a new directory below `parent`; return its files, in order.

    Raises DetError where the directory is there already: nothing is ever overwritten.
    """
    target = parent / names.distribution
    if target.exists() or target.is_symlink():
        raise DetError(f"{target} is there already; give another name, or another --dir")
    words = _words(names, KINDS[kind])
    written = []
    try:
        for source in (kind, "common"):
            for path, text in _templates(files(__package__) / "templates" / source):
                file = target / path.replace("PACKAGE", names.package)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(_filled(text, words), encoding="utf-8")
                written.append(file)
    except OSError as error:
        raise DetError(f"cannot write {error.filename}: {error.strerror}; give another --dir") from error
    return sorted(written)


def _words(names: Names, kind: _Kind) -> dict[str, str]:
    major, minor = (int(part) for part in __version__.split(".")[:2])
    bounds = f">={major}.{minor},<{major}.{minor + 1}"
    return {
        "name": names.name,
        "distribution": names.distribution,
        "package": names.package,
        "class": names.class_,
        "summary": kind.summary.format(name=names.name),
        "entry": kind.entry,
        "needs": ", ".join(f'"{need}"' for need in (*(f"{house}{bounds}" for house in kind.houses), *kind.needs)),
        "testing": f"det-testing{bounds}",
    }


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace("{{" + word + "}}", value)
    return text


def _templates(directory: Traversable, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each template's path in the package that it is for, and its text."""
    for entry in directory.iterdir():
        path = str(PurePosixPath(prefix, entry.name))
        if entry.is_dir():
            yield from _templates(entry, path)
        elif path.endswith(_SUFFIX):
            plain = path.removesuffix(_SUFFIX)
            yield (".gitignore" if plain == "gitignore" else plain), entry.read_text(encoding="utf-8")
