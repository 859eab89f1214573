"""The use of a `det server` from another machine: sign-ins, requests, and archives of code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from ._archive import MAX_ARCHIVE as MAX_ARCHIVE
    from ._archive import pack as pack
    from ._archive import unpack as unpack
    from ._secrets import describe_secrets as describe_secrets
    from ._secrets import find_secrets as find_secrets
    from ._server import ERROR_KIND as ERROR_KIND
    from ._server import Lost as Lost
    from ._server import Refusal as Refusal
    from ._server import RemoteServer as RemoteServer
    from ._server import check_address as check_address
    from ._sign_ins import SignIn as SignIn
    from ._sign_ins import SignIns as SignIns
    from ._sign_ins import chosen_server as chosen_server
    from ._sign_ins import sign_in as sign_in
    from ._submission import send_code as send_code
    from ._submission import submit_experiment as submit_experiment
    from ._terminal import REPLY_SECONDS as REPLY_SECONDS
    from ._terminal import RemoteTerminal as RemoteTerminal

lazy(__name__)
