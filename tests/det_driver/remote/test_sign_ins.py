"""Addresses of servers, and the file of sign-ins."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from det_core.errors import DetError
from det_driver.remote import SignIn, SignIns, check_address

ADDRESS = "https://gpu.example.org:8443"


@pytest.fixture
def kept(tmp_path: Path) -> SignIns:
    return SignIns({"XDG_CONFIG_HOME": str(tmp_path)})


def test_a_token_is_kept_where_only_its_user_reads(kept: SignIns) -> None:
    sign_in = SignIn("me", "secret", time.time() + 60)
    kept.add(ADDRESS, sign_in)
    assert kept.get(ADDRESS) == sign_in
    assert kept.current == ADDRESS
    assert kept.path.stat().st_mode & 0o777 == 0o600
    assert kept.path.parent.stat().st_mode & 0o777 == 0o700
    kept.remove(ADDRESS)
    assert kept.current == ""
    assert "secret" not in kept.path.read_text()


def test_without_a_valid_token_one_is_told_to_sign_in(kept: SignIns) -> None:
    with pytest.raises(DetError, match=f"^you are not signed in to {ADDRESS}; sign in: det login"):
        kept.get(ADDRESS)
    kept.add(ADDRESS, SignIn("me", "secret", time.time() - 1))
    with pytest.raises(DetError, match=f"^you are no longer signed in to {ADDRESS}"):
        kept.get(ADDRESS)


def test_a_damaged_file_of_sign_ins_is_named(kept: SignIns) -> None:
    kept.path.parent.mkdir()
    kept.path.write_text("{")
    with pytest.raises(DetError, match=r"servers.json cannot be read: .*; remove it"):
        kept.get(ADDRESS)


@pytest.mark.parametrize(
    ("given", "is_read_as"),
    [
        ("gpu.example.org", "https://gpu.example.org"),
        ("localhost:8080", "http://localhost:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("http://[::1]:8080/det/", "http://[::1]:8080/det"),
        ("HTTPS://GPU.example.org:8443", ADDRESS),
    ],
)
def test_an_address_has_one_form(given: str, is_read_as: str) -> None:
    assert check_address(given) == is_read_as


@pytest.mark.parametrize(
    "given", ["", "ftp://a", "https://", "https://a:b", "https://a?b", "https://a/\n", "https://ä"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(DetError, match="is no address of a server"):
        check_address(given)


def test_plain_http_to_another_machine_is_refused() -> None:
    with pytest.raises(DetError, match="is plain http to another machine"):
        check_address("http://gpu.example.org")
    assert check_address("http://gpu.example.org", insecure=True) == "http://gpu.example.org"


def test_an_address_with_a_password_is_refused_without_it() -> None:
    with pytest.raises(DetError, match=r"^the address holds") as error:
        check_address("https://me:secret@gpu.example.org")
    assert "secret" not in str(error.value)
