"""The file of a database: its permissions and its journal mode.

Only the owner can read the file. The journal mode depends on whether several machines use it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from det_driver.store._locks import is_shared


def list_sidecars(path: Path) -> list[Path]:
    """Return the paths of the files that SQLite may create next to a database."""
    return [Path(f"{path}{end}") for end in ("-wal", "-shm", "-journal")]


def keep_private(path: Path) -> None:
    """Make the file if necessary, and let only its owner read it.

    SQLite gives its other files the same permissions. This does not open the file: closing it would
    release the POSIX locks of all other connections of this process.
    """
    # The file exists, or SQLite reports the error when it opens the file.
    with suppress(OSError):
        os.mknod(path, 0o600)
    with suppress(OSError):
        if path.stat().st_mode & 0o077:
            for each in (path, *list_sidecars(path)):
                with suppress(FileNotFoundError):
                    each.chmod(0o600)


def use_journal(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    """Set the journal mode that suits the place, with retries for up to `patience` seconds.

    SQLite itself does not wait for other processes here. On a single machine the mode is WAL. It
    lets one writer and readers work at the same time, through shared memory.

    Several machines have no shared memory. There the mode is a rollback journal, for which SQLite's
    locks suffice:

    - Its file persists, emptied, as other machines may see a new file too late.
    - It is synced before a commit returns, as a machine may fail at any moment.
    """
    shared = is_shared(path.parent)
    wanted, deadline = "persist" if shared else "wal", time.monotonic() + patience
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != wanted:
        try:
            connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    connection.execute(f"PRAGMA synchronous = {'FULL' if shared else 'NORMAL'}")
