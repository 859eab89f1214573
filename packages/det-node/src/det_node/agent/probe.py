"""A run that only checks its node: `python3 -P -m det_node.agent.probe NAME`.

It reads what the driver has written to the storage, and writes an answer there. It prints JSON: the
node's name, what is wrong (if anything), and the installed versions.
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

from det_core.config import from_json
from det_core.errors import DetError
from det_core.hooks import Plugins
from det_core.storage import MANIFEST, Storage
from det_core.support.installation import own_version
from det_core.train.environ import variable


def versions(plugins: Plugins) -> dict[str, str]:
    """Return the versions of Python, of det-core, and of what framework plugins require.

    A requirement that is not installed is left out.
    """
    found = {"python": platform.python_version(), "det-core": own_version()}
    required = (text for framework in plugins.frameworks().values() for text in framework.requires)
    for name in (re.split(r"[^\w-]", text)[0] for text in required):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def leave(storage: Storage, name: str) -> None:
    """Write a file that another node is to find.

    It is not a checkpoint, as its manifest describes none.
    """
    with storage.store(name) as directory:
        (directory / MANIFEST).write_text(json.dumps({"name": name, "left": name}))


def sees(storage: Storage, name: str) -> bool:
    """Return whether a storage has what another node has written there."""
    try:
        with storage.restore(name) as directory:
            return bool(
                json.loads((directory / MANIFEST).read_text()) == {"name": name, "left": name}
            )
    except (DetError, OSError):
        return False


def _try(plugins: Plugins, name: str) -> str:
    config = from_json(variable(os.environ, "DET_EXPERIMENT_CONFIG") or "{}")
    try:
        storage = plugins.storage_of(config, Path(os.environ["DET_CHECKPOINT_ROOT"]))
        if not sees(storage, name):
            return (
                f"does not see what this one writes to {storage.url(name).removesuffix(f'/{name}')}"
            )
        leave(storage, f"{name}-back")
    except DetError as error:
        return f"cannot use the checkpoint storage: {error}"
    return ""


if __name__ == "__main__":
    installed = Plugins.installed(warn=lambda message: None)
    result = {
        "machine": os.uname().nodename,
        "wrong": _try(installed, sys.argv[1]),
        "versions": versions(installed),
    }
    sys.stdout.write(f"{json.dumps(result)}\n")
