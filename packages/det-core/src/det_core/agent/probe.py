"""A run that only tries its machine: `python3 -P -m det_core.agent.probe NAME` finds what the driver left in the storage.

It leaves an answer there, and prints what is wrong, if anything, and the versions of what is installed, as JSON.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from ..config import from_json
from ..environ import variable
from ..errors import DetError
from ..plugins import Plugins
from ..storage import MANIFEST, Storage


def versions(plugins: Plugins) -> dict[str, str]:
    """Return the versions of Python, of det-core, and of what the plugins of frameworks require and is installed."""
    found = {"python": platform.python_version()}
    required = (text for framework in plugins.frameworks().values() for text in framework.requires)
    for name in ("det-core", *(re.split(r"[^\w-]", text)[0] for text in required)):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def leave(storage: Storage, name: str) -> None:
    """Write what another machine is to find: no checkpoint, as its manifest is of none."""
    with storage.store(name) as directory:
        (directory / MANIFEST).write_text(json.dumps({"left": name}))


def sees(storage: Storage, name: str) -> bool:
    """Tell whether a storage has what another machine has left there."""
    try:
        with storage.restore(name) as directory:
            return bool(json.loads((directory / MANIFEST).read_text()) == {"left": name})
    except (DetError, OSError):
        return False


def _try(plugins: Plugins, name: str) -> str:
    config = from_json(variable(os.environ, "DET_EXPERIMENT_CONFIG") or "{}")
    try:
        storage = plugins.storage_of(config, Path(os.environ["DET_CHECKPOINT_ROOT"]))
        if not sees(storage, name):
            return f"does not see what this one writes to {storage.url(name).removesuffix(f'/{name}')}"
        leave(storage, f"{name}-back")
    except DetError as error:
        return f"cannot use the checkpoint storage: {error}"
    return ""


if __name__ == "__main__":
    installed = Plugins.installed(warn=lambda message: None)
    told = {"machine": os.uname().nodename, "wrong": _try(installed, sys.argv[1]), "versions": versions(installed)}
    sys.stdout.write(f"{json.dumps(told)}\n")
