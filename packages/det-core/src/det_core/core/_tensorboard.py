"""TensorBoard's files in checkpoint storage, under a name that one trial of one store always has."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from ..storage import MANIFEST, Storage


def upload(
    storage: Storage,
    directory: Path,
    selector: Callable[[Path], bool],
    mangler: Callable[[Path, int], Path] | None,
) -> str | None:
    """Store the selected files of a directory, in place of those of an earlier call; return what they are stored under."""
    found = [path.relative_to(directory) for path in sorted(directory.rglob("*")) if path.is_file()]
    wanted = {path: mangler(path, 0) if mangler is not None else path for path in found if selector(path)}
    if not wanted:
        return None
    name = f"tensorboard-{uuid5(NAMESPACE_URL, f'{socket.gethostname()}:{directory.absolute()}')}"
    if storage.exists(name):
        storage.delete(name)
    with storage.store(name) as place:
        for source, target in wanted.items():
            place.joinpath(target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(directory / source, place / target)
        (place / MANIFEST).write_text(json.dumps({"tensorboard": str(directory)}))
    return name


__all__ = ["upload"]
