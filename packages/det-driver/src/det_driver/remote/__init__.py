"""The use of a `det server` from another machine: sign-ins, requests, and archives of code."""

from __future__ import annotations

from ._archive import MAX_ARCHIVE, pack, unpack
from ._secrets import describe_secrets, find_secrets
from ._server import ERROR_KIND, Lost, Refusal, RemoteServer, check_address
from ._sign_ins import SignIn, SignIns, sign_in
from ._submission import send_code, submit_experiment
from ._terminal import REPLY_SECONDS, RemoteTerminal

__all__ = [
    "ERROR_KIND",
    "MAX_ARCHIVE",
    "REPLY_SECONDS",
    "Lost",
    "Refusal",
    "RemoteServer",
    "RemoteTerminal",
    "SignIn",
    "SignIns",
    "check_address",
    "describe_secrets",
    "find_secrets",
    "pack",
    "send_code",
    "sign_in",
    "submit_experiment",
    "unpack",
]
