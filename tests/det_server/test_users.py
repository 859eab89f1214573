"""The file of users: names, passwords, what is stored, and a damaged file."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from tests.det_server.conftest import PASSWORD

from det_core.errors import DetError, StoreError
from det_server import Role, User, Users
from det_server.users import FILE


def test_no_password_and_no_token_is_stored(home: Path, users: Users) -> None:
    issued, session = users.make_token("ann"), users.sign_in("ann", PASSWORD)
    assert session is not None
    for file in home.glob(f"{FILE}*"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        stored = file.read_bytes()
        for secret in (issued.text, session.text, PASSWORD):
            assert secret.encode() not in stored
    assert b"$argon2id$" in b"".join(each.read_bytes() for each in home.glob(f"{FILE}*"))


@pytest.mark.parametrize("name", ["", "a b", "a\n", "a\x00", "a/b", "<b>", "x" * 65, "a\u202eb"])
def test_a_name_that_is_not_allowed_is_refused(users: Users, name: str) -> None:
    with pytest.raises(DetError, match="is no name of a user: it has 1 to 64"):
        users.add(name, Role.VIEWER, PASSWORD)


@pytest.mark.parametrize("password", ["", "short", "x" * 1025])
def test_a_password_of_a_wrong_length_is_refused(users: Users, password: str) -> None:
    with pytest.raises(DetError, match="a password has 10 to 1024 characters, not"):
        users.add("new", Role.VIEWER, password)
    with pytest.raises(DetError, match="a password has"):
        users.set_password("ann", password)


def test_users_are_listed_and_a_name_is_taken_once(users: Users) -> None:
    assert users.everybody()[:2] == [User("ann", Role.EDITOR), User("bob", Role.EDITOR)]
    with pytest.raises(DetError, match="the user ann exists already"):
        users.add("ann", Role.VIEWER, PASSWORD)


def test_what_is_about_nobody_is_refused(users: Users) -> None:
    with pytest.raises(DetError, match="no user is called 'x'"):
        users.remove("x")
    with pytest.raises(DetError, match="no user is called 'x'"):
        users.set_password("x", PASSWORD)
    with pytest.raises(DetError, match="no user is called 'x'"):
        users.make_token("x")
    with pytest.raises(DetError, match="no token has the number 9"):
        users.revoke(9)
    with pytest.raises(DetError, match="good for 1 to 3650 days, not 0"):
        users.make_token("ann", 0)


def test_the_last_admin_remains(users: Users) -> None:
    with pytest.raises(DetError, match="root is the only admin"):
        users.remove("root")
    users.add("second", Role.ADMIN, PASSWORD)
    users.remove("root")
    assert User("root", Role.ADMIN) not in users.everybody()


def test_who_is_disabled_during_a_sign_in_gets_no_session(
    users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be valid from when the user is enabled again."""

    class Hasher:
        verified = PasswordHasher().verify

        def verify(self, hashed: str, password: str) -> bool:
            fits = Hasher.verified(hashed, password)
            users.change("ann", disabled=True)
            return fits

    monkeypatch.setattr("det_server.users._HASHER", Hasher())
    assert users.sign_in("ann", PASSWORD) is None
    users.change("ann", disabled=False)
    assert not [each for each in users.tokens() if each.user == "ann"]


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreError, match=r"server\.db is not a store of det"):
        Users(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    users = Users(tmp_path)
    for number in range(30):
        users.add(f"user{number}", Role.VIEWER, PASSWORD)
    users._database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    users._database.close()
    path = tmp_path / FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * (len(whole) - 8192))
    with pytest.raises(StoreError, match=r"server\.db.*damaged"):
        Users(tmp_path)


def test_a_file_of_a_newer_det_is_refused(home: Path, users: Users) -> None:
    with sqlite3.connect(home / FILE) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(StoreError, match="schema version 99, newer than"):
        Users(home)
