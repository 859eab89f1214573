"""Determined's `DistributedContext`, which needs no key."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import Any, Self

import det_core
from det_core import DetError
from det_core.support.paths import expand_user
from det_core.train.environ import WorkerEnv

_FILE = "ranks.key"
_BYTES = 32
_DEEPSPEED = {
    "rank": "RANK",
    "size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_size": "LOCAL_SIZE",
    "cross_rank": "CROSS_RANK",
    "cross_size": "CROSS_SIZE",
}


class _AnyDistributed(type):
    """Makes det's own contexts instances of the class here."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, det_core.DistributedContext)


class DistributedContext(det_core.DistributedContext, metaclass=_AnyDistributed):
    """det's `DistributedContext`, with a default key.

    In a run the key is derived from that of the run. Outside of a run, on one host, it is in the
    file `ranks.key` of the home, which only its owner can read. Raises ValueError for ranks on
    several hosts outside of a run.
    """

    def __init__(self, *, key: bytes | str | None = None, **options: Any) -> None:
        size = options.get("size") or 1
        if key is None and size > 1:
            env = WorkerEnv.read(os.environ)
            if env is not None:
                key = hashlib.sha256(b"the ranks of a script" + env.key).digest()
            elif options.get("local_size") == size:
                key = _own_key(expand_user(os.environ.get("DET_HOME") or "~/.det"))
        super().__init__(key=key, **options)

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> Self:
        """Return the context of processes that DeepSpeed's launcher or `det launch torch` started.

        The variables of either are read. Raises DetError where some are missing.
        """
        if "LOCAL_WORLD_SIZE" in os.environ:
            return cls.from_torch_distributed(chief_ip)
        missing = [name for name in _DEEPSPEED.values() if not os.environ.get(name, "").isdecimal()]
        if missing:
            raise DetError(
                f"DistributedContext.from_deepspeed: {', '.join(missing)} are not set; start the"
                " ranks with det launch torch, and use from_torch_distributed()"
            )
        numbers: dict[str, Any] = {
            name: int(os.environ[variable]) for name, variable in _DEEPSPEED.items()
        }
        return cls(**numbers, chief_ip=chief_ip or os.environ.get("DET_CHIEF_IP"))


def _own_key(home: Path) -> bytes:
    """Return the key in a home, which is created if it is missing.

    Ranks that call this at the same time get the same key.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    file, fresh = home / _FILE, home / f".{_FILE}.{secrets.token_hex(8)}"
    if not file.exists():
        fresh.touch(mode=0o600, exist_ok=False)
        try:
            fresh.write_bytes(secrets.token_bytes(_BYTES))
            os.link(fresh, file)
        except FileExistsError:
            # Another rank has created it.
            pass
        finally:
            fresh.unlink()
    return file.read_bytes()
