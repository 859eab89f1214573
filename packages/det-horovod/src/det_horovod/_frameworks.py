"""The frameworks of this environment that Horovod supports, and those it was built for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

from det_core.errors import DetError, did_you_mean

NAMES = ("torch", "tensorflow")
LIBRARIES = {"torch": "mpi_lib_v2", "tensorflow": "mpi_lib"}


@dataclass(frozen=True)
class Framework:
    """An installed framework. TensorFlow has several names of distributions."""

    name: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"

    @property
    def release(self) -> tuple[int, int]:
        """The first two numbers of the version."""
        major, minor = re.findall(r"\d+", self.version)[:2]
        return int(major), int(minor)


def installed() -> list[Framework]:
    """Return the frameworks of this environment without importing them."""
    present = [name for name in NAMES if find_spec(name)]
    distributions = metadata.packages_distributions() if present else {}
    found = [(name, distributions.get(name, [name])[0]) for name in present]
    return [
        Framework(name, each.lower().replace("_", "-"), metadata.version(each))
        for name, each in found
    ]


def chosen(wanted: str | None, found: Sequence[Framework]) -> list[Framework]:
    """Return the frameworks that `--with` names, or all of them.

    Raises DetError if one is unknown or not installed, or if there is none at all.
    """
    if wanted is None:
        if not found:
            raise DetError(
                "there is no framework for Horovod to serve; install torch, tensorflow or"
                " tensorflow-cpu first, in this environment"
            )
        return list(found)
    names = [name.strip() for name in wanted.split(",")]
    for name in names:
        if name not in NAMES:
            listed = f"; give {' or '.join(NAMES)}, or both with a comma between"
            raise DetError(
                "--with has"
                f" {name!r}{did_you_mean(name.lower().removeprefix('py'), NAMES) or listed}"
            )
        if name not in {each.name for each in found}:
            raise DetError(
                f"{name} is not installed here; install it first, as Horovod is built against it"
            )
    return [each for each in found if each.name in names]


def available(framework: str) -> bool:
    """Return whether the installed Horovod has its library for `torch` or `tensorflow`.

    It imports and loads nothing.
    """
    spec = find_spec("horovod")
    return any(
        (Path(folder) / framework / f"{LIBRARIES[framework]}{suffix}").is_file()
        for folder in (spec.submodule_search_locations or () if spec else ())
        for suffix in EXTENSION_SUFFIXES
    )
