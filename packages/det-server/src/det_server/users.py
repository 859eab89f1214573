"""Users, their sessions and tokens, and who owns which experiment: server.db in the home."""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from det_core.errors import DetError, StoreError
from det_driver.store import Database

FILE = "server.db"
SESSION_DAYS = 14
TOKEN_DAYS = 90
MOST_DAYS = 3650
DAY = 86400.0
LONGEST_NAME = 64
FEWEST_CHARACTERS, LONGEST_PASSWORD = 10, 1024
_NAME = re.compile(rf"[\w.@+-]{{1,{LONGEST_NAME}}}")
LONGEST_LABEL = 200
_LABEL = re.compile(rf".{{1,{LONGEST_LABEL}}}")
_CLOCK_SECONDS = 60.0
"""How often the latest time is stored, at most."""
# OWASP's recommendation for argon2id: 19 MiB, so that several sign-ins at once do not take the
# memory from the training.
_HASHER = PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)
_MIGRATIONS = (
    (
        """CREATE TABLE user (
            id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, role TEXT NOT NULL,
            password TEXT NOT NULL, once INTEGER NOT NULL, created REAL NOT NULL
        )""",
        """CREATE TABLE token (
            id INTEGER PRIMARY KEY AUTOINCREMENT, hash TEXT NOT NULL UNIQUE,
            user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE, session INTEGER NOT NULL,
            created REAL NOT NULL, expires REAL NOT NULL
        )""",
        "CREATE INDEX token_user ON token (user)",
        # The time tells an experiment from a later one that was given the same number.
        """CREATE TABLE owner (
            experiment INTEGER PRIMARY KEY, created REAL NOT NULL,
            user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE
        )""",
        """CREATE TABLE clock (
            only_row INTEGER PRIMARY KEY CHECK (only_row = 1), latest REAL NOT NULL
        )""",
    ),
    (
        """CREATE TABLE workspace (
            id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
            private INTEGER NOT NULL
        )""",
        """CREATE TABLE member (
            workspace INTEGER NOT NULL REFERENCES workspace ON DELETE CASCADE,
            user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE, role TEXT NOT NULL,
            PRIMARY KEY (workspace, user)
        )""",
    ),
    ("ALTER TABLE user ADD COLUMN disabled INTEGER NOT NULL DEFAULT 0",),
    (
        """CREATE TABLE preference (
            user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE, key TEXT NOT NULL,
            value TEXT NOT NULL, PRIMARY KEY (user, key)
        )""",
    ),
    # Bytes. `measured` is the time of `used`, and `warned` has the webhooks that know of it.
    (
        "ALTER TABLE user ADD COLUMN quota INTEGER",
        "ALTER TABLE user ADD COLUMN used INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE user ADD COLUMN measured REAL",
        """CREATE TABLE warned (
            user INTEGER NOT NULL REFERENCES user ON DELETE CASCADE, webhook TEXT NOT NULL,
            PRIMARY KEY (user, webhook)
        )""",
    ),
)


class Role(StrEnum):
    """What a user may do."""

    VIEWER = "viewer"
    """May see everything."""
    EDITOR = "editor"
    """May create experiments, too, and change their own."""
    ADMIN = "admin"
    """May change everything."""


@dataclass(frozen=True)
class User:
    """Who sent a request."""

    name: str
    role: Role


@dataclass(frozen=True)
class Workspace:
    """A label whose experiments have rights of their own.

    Only members see the experiments of a private one. Members who are editors change those of
    others, too.
    """

    name: str
    private: bool
    members: dict[str, Role]


@dataclass(frozen=True)
class Account:
    """A user as an admin sees it. `created` is in seconds since the epoch.

    A disabled one cannot sign in, and sessions and API tokens are invalid for as long. `used` and
    `quota` are in bytes. A `quota` of None is no limit.
    """

    name: str
    role: Role
    disabled: bool
    created: float
    used: int
    quota: int | None


@dataclass(frozen=True)
class Token:
    """A session or an API token. Times are seconds since the epoch."""

    id: int
    user: str
    is_session: bool
    created: float
    expires: float


@dataclass(frozen=True)
class Quota:
    """How many bytes a user uses, and may use. `most` is None where nothing limits them.

    `measured` is when that was, in seconds since the epoch, or None if it is not known yet.
    """

    user: str
    most: int | None
    used: int
    measured: float | None


@dataclass(frozen=True)
class Issued:
    """A new session or API token. Its text is stored nowhere."""

    id: int
    text: str
    expires: float


class Users:
    """The users of a server. Every thread and every process may use them at the same time.

    The file is made if it is missing. Raises StoreError where it is damaged, or of a newer det.
    """

    def __init__(self, home: Path) -> None:
        self.path = home / FILE
        self._local = threading.local()
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the home {home}: {error.strerror}") from error
        found = self._database.typed(tuple[str], "PRAGMA quick_check(1)")
        if found != [("ok",)]:
            raise StoreError(
                f"{self.path} is damaged ({found[0][0]}); restore it from a copy, or move it away"
                " to begin again"
            )
        stored = self._database.row("SELECT latest FROM clock")
        self._stored = float(stored[0]) if stored else 0.0
        self._latest = max(time.time(), self._stored)
        self._seen = time.monotonic()
        self._clock = threading.Lock()
        # Whoever asks for an unknown user waits as long as for a known one.
        self._nobody = _HASHER.hash(secrets.token_hex(16))

    @property
    def _database(self) -> Database:
        """The connection of this thread."""
        if (found := getattr(self._local, "database", None)) is None:
            found = self._local.database = Database(self.path, _MIGRATIONS)
        database: Database = found
        return database

    def now(self) -> float:
        """Return the time, which never goes back and never stands still, as the clock may do.

        So a session ends in time, even if the clock is set back.
        """
        with self._clock:
            seen = time.monotonic()
            self._latest = max(time.time(), self._latest + seen - self._seen)
            self._seen = seen
            latest = self._latest
            if is_due := latest > self._stored + _CLOCK_SECONDS:
                self._stored = latest
        if is_due:
            # Where another process holds the file, it is stored a minute later, and only this
            # request waits.
            with suppress(StoreError):
                self._database.run(
                    "INSERT INTO clock VALUES (1, ?) ON CONFLICT DO UPDATE"
                    " SET latest = max(latest, excluded.latest)",
                    (latest,),
                )
        return latest

    def add(self, name: str, role: Role, password: str, *, once: bool = False) -> None:
        """Add a user. With `once`, the password is good for one sign-in.

        Raises DetError for a name or a password that is not allowed, or for a name that exists.
        """
        check_name(name)
        check_password(password)
        try:
            self._database.run(
                "INSERT INTO user (name, role, password, once, created) VALUES (?, ?, ?, ?, ?)",
                (name, role, _HASHER.hash(password), once, self.now()),
            )
        except sqlite3.IntegrityError:
            raise DetError(
                f"the user {name} exists already; det server user list shows all"
            ) from None

    def remove(self, name: str) -> None:
        """Remove a user with their sessions and tokens.

        Their experiments remain, and only admins may change them. Raises DetError for the last
        admin.
        """
        database = self._database
        with database.transaction():
            found = self._find(name)
            self._check_not_last_admin(name)
            database.run("DELETE FROM user WHERE id = ?", (found,))

    def everybody(self) -> list[User]:
        """Return all users, sorted by name."""
        rows = self._database.typed(tuple[str, Role], "SELECT name, role FROM user ORDER BY name")
        return [User(*row) for row in rows]

    def accounts(self) -> list[Account]:
        """Return all users as an admin sees them, sorted by name."""
        rows = self._database.typed(
            tuple[str, Role, Literal[0, 1], float, int, int | None],
            "SELECT name, role, disabled, created, used, quota FROM user ORDER BY name",
        )
        return [Account(name, role, bool(off), *rest) for name, role, off, *rest in rows]

    def change(self, name: str, *, role: Role | None = None, disabled: bool | None = None) -> None:
        """Give a user another role, or disable or enable a user. None means no change.

        A disabled user's sessions end. Raises DetError where no admin who is enabled would remain.
        """
        database = self._database
        with database.transaction():
            found = self._find(name)
            if disabled or role not in (None, Role.ADMIN):
                self._check_not_last_admin(name)
            database.run(
                "UPDATE user SET role = coalesce(?, role), disabled = coalesce(?, disabled)"
                " WHERE id = ?",
                (role, disabled, found),
            )
            if disabled:
                database.run("DELETE FROM token WHERE user = ? AND session", (found,))

    def _check_not_last_admin(self, name: str) -> None:
        sql = "SELECT name FROM user WHERE role = ? AND NOT disabled"
        if self._database.rows(sql, (Role.ADMIN,)) == [(name,)]:
            raise DetError(f"{name} is the only admin; add another one first")

    def set_password(self, name: str, password: str) -> None:
        """Give a user another password, and end their sessions. API tokens remain."""
        check_password(password)
        hashed, database = _HASHER.hash(password), self._database
        with database.transaction():
            found = self._find(name)
            database.run("UPDATE user SET password = ?, once = 0 WHERE id = ?", (hashed, found))
            database.run("DELETE FROM token WHERE user = ? AND session", (found,))

    def sign_in(self, name: str, password: str) -> Issued | None:
        """Return a new session. None where the name or the password is wrong."""
        select = "SELECT id, password, once FROM user WHERE name = ? AND NOT disabled"
        # What is no name may be no text that SQLite takes.
        row = self._database.row(select, (name,)) if _NAME.fullmatch(name) else None
        id, hashed, once = row or (0, self._nobody, False)
        try:
            fits = _HASHER.verify(hashed or self._nobody, password)
        except (VerificationError, InvalidHashError, UnicodeEncodeError):
            return None
        if not fits or not hashed or row is None:
            return None
        with self._database.transaction():
            # Another request may have used the password, or somebody may have changed it, or have
            # disabled the user. The session would be valid when the user is enabled again.
            used = "UPDATE user SET password = ? WHERE id = ? AND password = ? AND NOT disabled"
            if not self._database.run(used, ("" if once else hashed, id, hashed)):
                return None
            self._database.run("DELETE FROM token WHERE expires <= ?", (self.now(),))
            return self._issue(id, SESSION_DAYS, session=True)

    def make_token(self, name: str, days: int = TOKEN_DAYS) -> Issued:
        """Return a new API token of a user, for `days`."""
        if not 1 <= days <= MOST_DAYS:
            raise DetError(f"a token is good for 1 to {MOST_DAYS} days, not {days}")
        with self._database.transaction():
            return self._issue(self._find(name), days, session=False)

    def _issue(self, user: int, days: int, *, session: bool) -> Issued:
        text, now = secrets.token_urlsafe(32), self.now()
        expires = now + days * DAY
        insert = "INSERT INTO token (hash, user, session, created, expires) VALUES (?, ?, ?, ?, ?)"
        self._database.run(insert, (_hash(text), user, session, now, expires))
        row = self._database.row("SELECT id FROM token WHERE hash = ?", (_hash(text),))
        assert row is not None
        return Issued(row[0], text, expires)

    def find(self, text: str) -> User | None:
        """Return whose session or API token this is. None where it is not valid."""
        rows = self._database.typed(
            tuple[str, Role, float],
            "SELECT name, role, expires FROM token JOIN user ON user.id = token.user"
            " WHERE hash = ? AND NOT disabled",
            (_hash(text),),
        )
        if not rows or rows[0][2] <= self.now():
            return None
        return User(*rows[0][:2])

    def tokens(self) -> list[Token]:
        """Return the sessions and API tokens that are valid, by number."""
        rows = self._database.typed(
            tuple[int, str, Literal[0, 1], float, float],
            "SELECT token.id, name, session, token.created, expires FROM token"
            " JOIN user ON user.id = token.user WHERE expires > ? ORDER BY token.id",
            (self.now(),),
        )
        return [Token(id, name, bool(session), *times) for id, name, session, *times in rows]

    def revoke(self, id: int) -> None:
        """End a session or an API token. Raises DetError where there is none of that number."""
        if not self._database.run("DELETE FROM token WHERE id = ?", (id,)):
            raise DetError(f"no token has the number {id}; det server token list shows all")

    def sign_out(self, text: str) -> None:
        """End the session or API token with this text."""
        self._database.run("DELETE FROM token WHERE hash = ?", (_hash(text),))

    def note_owner(self, name: str, experiment: int, created: float) -> None:
        """Note who owns an experiment, which was created at that time."""
        self._database.run(
            "INSERT OR REPLACE INTO owner SELECT ?, ?, id FROM user WHERE name = ?"
            # Somebody else may have had this name before.
            " AND created <= ?",
            (experiment, created, name, created),
        )

    def owner(self, experiment: int, created: float) -> str | None:
        """Return the name of an experiment's owner.

        None where nobody is known, or the user was removed.
        """
        row: Any = self._database.row(
            "SELECT name FROM owner JOIN user ON user.id = owner.user"
            " WHERE experiment = ? AND owner.created = ?",
            (experiment, created),
        )
        return str(row[0]) if row else None

    def owned(self, name: str) -> dict[int, float]:
        """Return the experiments that a user owns, with the times of their creation."""
        rows = self._database.typed(
            tuple[int, float],
            "SELECT experiment, owner.created FROM owner JOIN user ON user.id = owner.user"
            " WHERE name = ?",
            (name,),
        )
        return dict(rows)

    def set_workspace(self, name: str, *, private: bool) -> None:
        """Make a label a workspace, or make a workspace private or open."""
        if not _LABEL.fullmatch(name) or not name.isprintable():
            raise DetError(
                f"{name!r} is no label: it has 1 to {LONGEST_LABEL} characters in a line"
            )
        self._database.run(
            "INSERT INTO workspace (name, private) VALUES (?, ?)"
            " ON CONFLICT DO UPDATE SET private = excluded.private",
            (name, private),
        )

    def remove_workspace(self, name: str) -> None:
        """Make a workspace a mere label again. Everybody sees its experiments."""
        self._database.run("DELETE FROM workspace WHERE id = ?", (self._workspace(name),))

    def set_member(self, workspace: str, name: str, role: Role | None) -> None:
        """Make a user a member of a workspace with a role. None removes the user from it.

        Raises DetError where there is no such workspace, user or member.
        """
        found, user = self._workspace(workspace), self._find(name)
        if role is not None:
            self._database.run(
                "INSERT INTO member VALUES (?, ?, ?)"
                " ON CONFLICT DO UPDATE SET role = excluded.role",
                (found, user, role),
            )
        elif not self._database.run(
            "DELETE FROM member WHERE workspace = ? AND user = ?", (found, user)
        ):
            raise DetError(f"{name} is no member of {workspace}; det server workspace list")

    def workspaces(self) -> list[Workspace]:
        """Return the workspaces by name, each with its members."""
        rows = self._database.typed(
            tuple[str, Literal[0, 1], str | None, Role | None],
            "SELECT workspace.name, private, user.name, member.role FROM workspace"
            " LEFT JOIN member ON member.workspace = workspace.id"
            " LEFT JOIN user ON user.id = member.user ORDER BY workspace.name, user.name",
        )
        found: dict[str, Workspace] = {}
        for name, private, member, role in rows:
            workspace = found.setdefault(name, Workspace(name, bool(private), {}))
            if member is not None and role is not None:
                workspace.members[member] = role
        return [*found.values()]

    def _workspace(self, name: str) -> int:
        row = self._database.row("SELECT id FROM workspace WHERE name = ?", (name,))
        if row is None:
            raise DetError(f"no workspace is called {name!r}; det server workspace list shows all")
        return int(row[0])

    def preferences(self, name: str) -> dict[str, str]:
        """Return the values that the configurations of a user need not repeat, by key."""
        rows = self._database.typed(
            tuple[str, str],
            "SELECT key, value FROM preference WHERE user = ? ORDER BY key",
            (self._find(name),),
        )
        return dict(rows)

    def set_preferences(self, name: str, values: Mapping[str, str]) -> None:
        """Replace all values that the configurations of a user need not repeat."""
        database = self._database
        with database.transaction():
            found = self._find(name)
            database.run("DELETE FROM preference WHERE user = ?", (found,))
            for key, value in values.items():
                database.run("INSERT INTO preference VALUES (?, ?, ?)", (found, key, value))

    def owners(self) -> dict[tuple[int, float], str]:
        """Return the owners of all experiments, by number and time of creation."""
        rows = self._database.typed(
            tuple[int, float, str],
            "SELECT experiment, owner.created, name FROM owner JOIN user ON user.id = owner.user",
        )
        return {(id, created): name for id, created, name in rows}

    def set_quota(self, name: str, most: int | None) -> None:
        """Limit the bytes that a user may use. None means no limit."""
        if most is not None and not 0 <= most < 2**63:
            raise DetError(f"a quota is 0 to {2**63 - 1} bytes, not {most}")
        database = self._database
        with database.transaction():
            found = self._find(name)
            database.run("UPDATE user SET quota = ? WHERE id = ?", (most, found))
            database.run("DELETE FROM warned WHERE user = ?", (found,))

    def quotas(self) -> list[Quota]:
        """Return what all users use and may use, sorted by name."""
        rows = self._database.typed(
            tuple[str, int | None, int, float | None],
            "SELECT name, quota, used, measured FROM user ORDER BY name",
        )
        return [Quota(*row) for row in rows]

    def set_used(self, used: Mapping[str, int]) -> None:
        """Note how many bytes each user uses now. Those who are not named use none."""
        database, now = self._database, self.now()
        with database.transaction():
            database.run("UPDATE user SET used = 0, measured = ?", (now,))
            for name, size in used.items():
                database.run("UPDATE user SET used = ? WHERE name = ?", (size, name))

    def check_quota(self, name: str) -> None:
        """Raise DetError if a user uses all of their quota, by the last measurement."""
        rows = self._database.typed(
            tuple[int | None, int, float | None],
            "SELECT quota, used, measured FROM user WHERE name = ?",
            (name,),
        )
        for most, used, measured in rows:
            if most is None or used < most:
                continue
            age = "" if measured is None else f", as measured {self.now() - measured:.0f} s ago"
            raise DetError(
                f"{name} uses {show_bytes(used)} of a quota of {show_bytes(most)}{age}, and starts"
                " no experiment; delete experiments or checkpoints, or ask an admin for more"
            )

    def warned(self, name: str) -> set[str]:
        """Return the webhooks that were sent a warning of a user's use."""
        rows = self._database.rows("SELECT webhook FROM warned WHERE user = ?", (self._find(name),))
        return {webhook for (webhook,) in rows}

    def note_warning(self, name: str, webhook: str) -> None:
        """Note that a webhook was sent a warning of a user's use."""
        self._database.run(
            "INSERT OR IGNORE INTO warned SELECT id, ? FROM user WHERE name = ?", (webhook, name)
        )

    def forget_warnings(self, name: str) -> None:
        """Forget the warnings of a user's use, so that another one may be sent."""
        self._database.run(
            "DELETE FROM warned WHERE user = (SELECT id FROM user WHERE name = ?)", (name,)
        )

    def _find(self, name: str) -> int:
        row = self._database.row("SELECT id FROM user WHERE name = ?", (name,))
        if row is None:
            raise DetError(f"no user is called {name!r}; det server user list shows all")
        return int(row[0])


def check_name(name: str) -> None:
    """Raise DetError for a name that no user may have."""
    if not _NAME.fullmatch(name):
        raise DetError(
            f"{name!r} is no name of a user: it has 1 to {LONGEST_NAME} letters, digits and . _ -"
            " @ +"
        )


def show_bytes(size: int) -> str:
    """Return a size as people read it, such as 1.5 GiB."""
    amount, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.4g} {units[0]}"


def check_password(password: str) -> None:
    """Raise DetError for a password that is too short or too long."""
    if not FEWEST_CHARACTERS <= len(password) <= LONGEST_PASSWORD:
        raise DetError(
            f"a password has {FEWEST_CHARACTERS} to {LONGEST_PASSWORD} characters, not"
            f" {len(password)}"
        )


def _hash(text: str) -> str:
    # The texts are random and have 256 bits, so a slow hash would add nothing.
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
