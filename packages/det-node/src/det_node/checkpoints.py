"""One operation on a checkpoint storage, with the rights of the user of this process.

`python3 -P -m det_node.checkpoints` reads a `Wish` from the first line of its standard input, and
for `store` the files as a tar from the rest. It prints a `StorageReply` on a line of its own, and
after that, for `get`, the files as a tar. A server that runs code as the users of its machine never
opens a file of theirs: it starts this process as the user.
"""

from __future__ import annotations

import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from det_core.config import from_json
from det_core.errors import DetError, StorageUnreachable
from det_core.hooks import Plugins, extensions_of
from det_core.storage import Storage
from det_core.support.archives import extract
from det_core.support.paths import open_regular


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: `operation` of the storage that `config` names, by default that in `root`.

    `names` are the files to `get`, or the globs to `delete`. None means all.
    """

    operation: str
    config: str
    root: str
    uuid: str = ""
    names: tuple[str, ...] | None = None


class StorageReply(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `problem` is why nothing did, and `passes` whether it may do so later."""

    value: Any = None
    problem: str = ""
    passes: bool = False


encode_wish = msgspec.json.encode
decode_reply = msgspec.json.Decoder(StorageReply).decode
_decode_wish = msgspec.json.Decoder(Wish).decode


def _do(storage: Storage, wish: Wish) -> Any:
    match wish.operation:
        case "check":
            storage.check()
        case "delete":
            return storage.delete(wish.uuid, ("**/*",) if wish.names is None else wish.names)
        case "exists":
            return storage.exists(wish.uuid)
        case "files":
            return storage.files(wish.uuid)
        case "list":
            return list(storage.list())
        case "store":
            packed = io.BytesIO(sys.stdin.buffer.read())
            with storage.store(wish.uuid) as directory, tarfile.open(fileobj=packed) as tar:
                extract(tar, directory)
        case "url":
            return storage.url(wish.uuid)
        case _:
            raise DetError(f"no operation {wish.operation!r}")
    return None


def _send(storage: Storage, wish: Wish) -> None:
    names = None if wish.names is None else set(wish.names)
    selector = None if names is None else names.__contains__
    with storage.restore(wish.uuid, selector) as directory:
        present = sorted(
            name for name in storage.files(wish.uuid) if names is None or name in names
        )
        _reply(StorageReply())
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
            for name in present:
                # Nobody may ever write to a pipe.
                with open_regular(directory / name) as file:
                    tar.addfile(tar.gettarinfo(arcname=name, fileobj=file), file)
    sys.stdout.buffer.flush()


def _reply(reply: StorageReply) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(reply) + b"\n")
    sys.stdout.buffer.flush()


def main() -> int:
    """Do what the standard input says. Return 1 where that fails."""
    wish = _decode_wish(sys.stdin.buffer.readline())
    plugins = Plugins.installed(warn=lambda message: None)
    try:
        storage = plugins.storage_of(
            from_json(wish.config, extensions=extensions_of(plugins)), Path(wish.root)
        )
        if wish.operation == "get":
            _send(storage, wish)
        else:
            _reply(StorageReply(value=_do(storage, wish)))
    except DetError as error:
        _reply(StorageReply(problem=str(error), passes=isinstance(error, StorageUnreachable)))
        return 1
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _reply(StorageReply(problem=f"{error.strerror or error}{where}", passes=True))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
