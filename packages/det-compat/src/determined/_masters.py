"""The master that a script names: a server that the user has signed in to, or none."""

from __future__ import annotations

import os
import warnings
from functools import cache

from det_core.errors import DetError
from det_driver.remote import SignIns, check_address, sign_in


def use_master(master: str | None, user: str | None = None, password: str | None = None) -> None:
    """Let everything that follows in this process act on a server, by `DET_MASTER`.

    With a password it signs in, and keeps that as `det login` does. Without one, somebody must have
    signed in before. Otherwise the master is not asked, and a warning says so once.
    """
    if master is None:
        return
    if password is not None:
        address = check_address(master)
        sign_in(os.environ, address, user or "", password)
    elif not (address := _known(master)):
        _warn()
        return
    os.environ["DET_MASTER"] = address


def _known(master: str) -> str:
    try:
        address = check_address(master, insecure=True)
        SignIns(os.environ).get(address)
    except DetError:
        return ""
    return address


@cache
def _warn() -> None:
    """Warn once in a process that the master is not asked."""
    warnings.warn(
        "nobody has signed in to the master that is named (det login URL), so it is not asked;"
        " experiments are those of det's home, $DET_HOME",
        stacklevel=4,
    )
