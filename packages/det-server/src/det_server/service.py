"""A systemd unit that runs a server."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

from det_core.errors import DetError

_UNIT = """\
# Written by: det server install. Put it in /etc/systemd/system/{name}, and then:
#   systemctl daemon-reload && systemctl enable --now {name}
[Unit]
Description=det server of {description}
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User={user}
Environment={path}
ExecStart={command}
Restart=on-failure
RestartSec=5
# A mistake in its options does not go away.
RestartPreventExitStatus=2
# Drivers and their trials outlive a restart of the server.
KillMode=process
UMask=0077

[Install]
WantedBy=multi-user.target
"""
NAME = "det-server.service"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def make_unit(user: str, home: Path, options: Sequence[str]) -> str:
    """Return the unit of a server that serves `home` as `user`, with options of det server start.

    Raises DetError for a user that does not exist, and for what no unit can have.
    """
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise DetError(f"this machine has no user {user!r}; add one, or give another --user") from (
            None
        )
    start = [sys.executable, "-P", "-m", "det_driver.cli", "server", "start"]
    words = [*start, f"--home={home}", *options]
    return _UNIT.format(
        name=NAME,
        description=_escape(str(home)),
        user=_escape(user),
        path=_quote(f"PATH={Path(sys.executable).parent}:{_PATH}"),
        # systemd replaces variables in all words but the first.
        command=" ".join(
            [_quote(words[0]), *(_quote(word).replace("$", "$$") for word in words[1:])]
        ),
    )


def home_of(user: str) -> Path:
    """Return the home of det of a user without DET_HOME."""
    try:
        return Path(pwd.getpwnam(user).pw_dir) / ".det"
    except KeyError:
        raise DetError(f"this machine has no user {user!r}; add one, or give another --user") from (
            None
        )


def own_name() -> str:
    """Return the name of the user of this process."""
    return pwd.getpwuid(os.geteuid()).pw_name


def _escape(text: str) -> str:
    if not text.isprintable():
        raise DetError(f"{text!r} has control characters, which no unit can have")
    # systemd replaces %h and others.
    return text.replace("%", "%%")


def _quote(word: str) -> str:
    escaped = _escape(word).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
