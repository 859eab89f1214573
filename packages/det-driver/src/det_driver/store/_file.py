"""The file of a database: its owner's alone, and with a journal that its readers, its writer and its place allow."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from det_driver.store._locks import is_shared


def beside(path: Path) -> list[Path]:
    """What SQLite may have beside a file."""
    return [Path(f"{path}{end}") for end in ("-wal", "-shm", "-journal")]


def keep_private(path: Path) -> None:
    """Let nobody else read the file, which may be made here; SQLite gives its other files the same rights.

    It is not opened: closing it would take the locks of all other connections of this process, which SQLite counts on.
    """
    with suppress(OSError):  # it is there, or SQLite says what is wrong with the place
        os.mknod(path, 0o600)
    with suppress(OSError):
        if path.stat().st_mode & 0o077:
            for each in (path, *beside(path)):
                with suppress(FileNotFoundError):
                    each.chmod(0o600)


def use_journal(connection: sqlite3.Connection, path: Path, patience: float) -> None:
    """Have the journal that the place allows; SQLite does not wait for others there, so wait here.

    With a log written ahead a writer and readers go on side by side, by memory that they share. Several machines have none: there
    it is a journal of what was before, which SQLite's locks do with alone. It stays, emptied, as others may not see at once that
    there is a new file; and it is on the disk before a transaction is said to be over, as a machine may be gone the next moment.
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
