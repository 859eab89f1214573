"""The file of a database: its owner's alone, and with a log written ahead, so that its readers and its writer need not wait."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path


def keep_private(path: Path) -> None:
    """Let nobody else read the file, which may be made here; SQLite gives its other files the same rights.

    It is not opened: closing it would take the locks of all other connections of this process, which SQLite counts on.
    """
    with suppress(OSError):  # it is there, or SQLite says what is wrong with the place
        os.mknod(path, 0o600)
    with suppress(OSError):
        if path.stat().st_mode & 0o077:
            for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                with suppress(FileNotFoundError):
                    each.chmod(0o600)


def use_wal(connection: sqlite3.Connection, patience: float) -> None:
    """Switch a fresh file to WAL: SQLite does not wait for others there, so wait here."""
    deadline = time.monotonic() + patience
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
