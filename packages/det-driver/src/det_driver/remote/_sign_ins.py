"""The servers that this user has signed in to, in a file that only they can read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from det_core.errors import DetError
from det_core.support.installation import how_to_install

from ._server import Refusal, RemoteServer, check_address


class SignIn(msgspec.Struct, frozen=True):
    """One sign-in: the name, the token, and when it expires in Unix seconds.

    - `insecure`: whether plain http to another machine was allowed.
    """

    name: str
    token: str
    expires: float
    insecure: bool = False


def sign_in(
    environ: Mapping[str, str], address: str, name: str, password: str, *, insecure: bool = False
) -> tuple[SignIn, str]:
    """Get a token of a server for a password, keep it, and return it with the user's role.

    Raises DetError for a wrong password, and for what is no server of this version.
    """
    from .. import __version__

    try:
        given = RemoteServer(address).post("/session", {"name": name, "password": password})
    except Refusal as error:
        if error.status != 401:
            raise
        raise DetError(f"{address} knows no {name} with this password; try again") from None
    try:
        token, expires = str(given["token"]), float(given["expires"])
        me = RemoteServer(address, token).get("/me")
        name, role, version = str(me["name"]), str(me["role"]), str(me["version"])
    except (KeyError, TypeError, ValueError):
        raise DetError(f"there is no det server at {address}; check the address") from None
    if version.split(".")[:2] != __version__.split(".")[:2]:
        raise DetError(
            f"{address} has det {version}, and this is {__version__}; install its version here:"
            f" {how_to_install('det-driver')}"
        )
    made = SignIn(name, token, expires, insecure)
    SignIns(environ).add(address, made)
    return made, role


class _File(msgspec.Struct):
    current: str = ""
    servers: dict[str, SignIn] = {}


_decode = msgspec.json.Decoder(_File).decode


class SignIns:
    """The file `det/servers.json` in the user's directory of configurations.

    That is `$XDG_CONFIG_HOME`, by default `~/.config`. Raises DetError for a file that cannot be
    read.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        root = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        self.path = root / "det" / "servers.json"

    @property
    def current(self) -> str:
        """The address of the server that commands act on, or nothing."""
        return self._read().current

    def get(self, address: str) -> SignIn:
        """Return the sign-in for an address. Raises DetError where there is none, or no longer."""
        found = self._read().servers.get(address)
        if found is None or found.expires < time.time():
            why = "are not" if found is None else "are no longer"
            raise DetError(f"you {why} signed in to {address}; sign in: det login {address}")
        return found

    def add(self, address: str, sign_in: SignIn) -> None:
        """Keep a sign-in. Commands act on its server from now on."""
        found = self._read()
        found.servers[address] = sign_in
        found.current = address
        self._write(found)

    def remove(self, address: str) -> None:
        """Forget a sign-in."""
        found = self._read()
        found.servers.pop(address, None)
        if found.current == address:
            found.current = ""
        self._write(found)

    def _read(self) -> _File:
        try:
            return _decode(self.path.read_bytes())
        except FileNotFoundError:
            return _File()
        except (OSError, msgspec.DecodeError) as error:
            raise DetError(
                f"{self.path} cannot be read: {error}; remove it, and sign in again: det login"
            ) from None

    def _write(self, file: _File) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            temporary.unlink()
        # Another user never sees the token, not for an instant.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as new:
            json.dump(msgspec.to_builtins(file), new, indent=1)
        temporary.replace(self.path)


def chosen_server(master: str | None, environ: Mapping[str, str]) -> str:
    """Return the address of the server that commands act on. Empty for the home.

    It is `det -m`, else `DET_MASTER`, each empty for the home. Otherwise it is the home where
    `DET_HOME` names one, else the server of the last `det login`.
    """
    given = environ.get("DET_MASTER") if master is None else master
    if given is not None:
        # A sign-in to an address was allowed when it was made.
        return check_address(given, insecure=True) if given else ""
    return "" if environ.get("DET_HOME") else SignIns(environ).current
