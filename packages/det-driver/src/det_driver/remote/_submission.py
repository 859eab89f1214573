"""Submits experiments to a server: their code first, and then their configuration."""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from det_core.config import ExperimentConfig
from det_core.storage import readable

from ..config import check_entrypoint
from ..provenance import gather
from ._archive import pack
from ._secrets import describe_secrets, find_secrets
from ._server import Lost, RemoteServer

_LONGEST_DIFF = 200_000
_RETRY_SECONDS, _PAUSE_SECONDS = 60.0, 0.5


def send_code(server: RemoteServer, code: Path, *, quiet: bool = True) -> str:
    """Send the code of a directory to a server, unless it has it already, and return its digest.

    Warns on stderr of files that seem to hold secrets. Unless `quiet`, says what was sent.
    """
    if secrets := find_secrets(code):
        sys.stderr.write(f"det: {describe_secrets([*secrets.items()])}\n")
    with tempfile.TemporaryFile() as archive:
        digest = pack(code, archive)
        size = archive.seek(0, 2)
        sent = server.upload(digest, size, archive)
    if sent and not quiet:
        sys.stderr.write(f"det: {readable(sent)} of code sent to {server.address}\n")
    return digest


def submit_experiment(
    server: RemoteServer,
    config: str,
    loaded: ExperimentConfig,
    code: Path,
    *,
    name: str,
    template: str | None = None,
    overrides: Sequence[str] = (),
    engine: str | None = None,
    paused: bool = False,
    quiet: bool = True,
) -> int:
    """Send an experiment to a server, start it there unless `paused`, and return its number.

    - `config` is YAML text, and `loaded` the same configuration, validated.
    - `name` is the experiment's name if the configuration has none.

    Unless `quiet`, says what was sent. Raises DetError for code that cannot be sent, and where the
    server refuses.
    """
    check_entrypoint(loaded.entrypoint, code)
    git = gather(code, loaded).get("git")
    digest = send_code(server, code, quiet=quiet)
    submission = {
        "config": config,
        "template": template,
        "overrides": list(overrides),
        "engine": engine,
        "name": name,
        "code": digest,
        "git": git and {**git, "diff": git.get("diff", "")[:_LONGEST_DIFF]},
        # The server makes one experiment of requests with the same key.
        "key": str(uuid.uuid4()),
        "paused": paused,
    }
    deadline, warned = time.monotonic() + _RETRY_SECONDS, False
    while True:
        try:
            return int(server.post("/submissions", submission)["id"])
        except Lost as error:
            # Nobody knows whether the server has made it. It may be starting again.
            if time.monotonic() >= deadline:
                raise Lost(f"{error}; det list shows whether the experiment was made") from error
            if not warned:
                sys.stderr.write(f"det: {error}; trying again for {_RETRY_SECONDS:.0f} s\n")
                warned = True
            time.sleep(_PAUSE_SECONDS)
