"""Which frameworks the installed Horovod was built for."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

LIBRARIES = {"torch": "mpi_lib_v2", "tensorflow": "mpi_lib"}


def available(framework: str) -> bool:
    """Tell whether the installed Horovod has its library for `torch` or `tensorflow`; imports and loads nothing."""
    return any(
        (Path(folder) / framework / f"{LIBRARIES[framework]}{suffix}").is_file()
        for folder in folders()
        for suffix in EXTENSION_SUFFIXES
    )


def folders() -> list[str]:
    """Return where the installed Horovod is; nothing where there is none."""
    spec = find_spec("horovod")
    return list(spec.submodule_search_locations or ()) if spec else []
