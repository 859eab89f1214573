"""Determined's `DistributedContext`, whose ranks bring no key."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

import det_core
from det_core.environ import WorkerEnv

_FILE = "ranks.key"
_BYTES = 32


class _AnyDistributed(type):
    """Counts what det gives a script as what the script may have made itself."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, det_core.DistributedContext)


class DistributedContext(det_core.DistributedContext, metaclass=_AnyDistributed):
    """det's, with a key for ranks that give none: in a run one that comes with it, on one host one that only its user can read.

    The latter is in the file `ranks.key` of the store's home. Raises ValueError for ranks on several hosts outside of a run.
    """

    def __init__(self, *, key: bytes | str | None = None, **options: Any) -> None:
        size = options.get("size") or 1
        if key is None and size > 1:
            env = WorkerEnv.read(os.environ)
            if env is not None:
                key = hashlib.sha256(b"the ranks of a script" + env.key).digest()
            elif options.get("local_size") == size:
                key = _own_key(Path(os.environ.get("DET_HOME") or Path.home() / ".det").expanduser())
        super().__init__(key=key, **options)


def _own_key(home: Path) -> bytes:
    """Return the key of whose home it is; ranks that ask at the same time get the same."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    file, fresh = home / _FILE, home / f".{_FILE}.{secrets.token_hex(8)}"
    if not file.exists():
        fresh.touch(mode=0o600, exist_ok=False)
        try:
            fresh.write_bytes(secrets.token_bytes(_BYTES))
            os.link(fresh, file)
        except FileExistsError:
            pass  # another rank was first
        finally:
            fresh.unlink()
    return file.read_bytes()
