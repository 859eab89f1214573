"""`det ui`."""

from __future__ import annotations

import os
import secrets
import sys
import webbrowser
from contextlib import suppress
from pathlib import Path

import click

from det_core.errors import DetError
from det_core.machine import is_loopback

PORT = 8090
KEY = "ui.key"
"""The file in the home with the key for programs."""


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help=f"The port to listen on: {PORT}, or any that is free.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--allow-host", "allowed", multiple=True, metavar="NAME", help="Another name of this server; may be repeated."
)
@click.option("--browser/--no-browser", default=True, help="Open a browser (the default, where there is a display).")
@click.pass_obj
def ui(settings: object, port: int | None, host: str, allowed: tuple[str, ...], browser: bool) -> None:
    """Open the page: experiments, trials, curves and logs, live, and what may be done about them.

    It listens on this machine only; from another one, forward the port (ssh -L), or name the host by which that one
    reaches it (--host, --allow-host). The address that is printed is good for one browser, and secret.
    """
    from .app import make_app
    from .guard import Keys
    from .serve import listening, serve

    if not is_loopback(host) and not allowed:
        raise DetError(
            f"--host {host} is for other machines too; name the host by which they reach this one: --allow-host NAME"
        )
    home = Path(getattr(settings, "home", None) or os.environ.get("DET_HOME") or Path.home() / ".det").absolute()
    try:
        sock = listening(host, PORT if port is None else port)
    except DetError:
        if port is not None:
            raise
        sock = listening(host, 0)
    number = sock.getsockname()[1]
    shown = allowed[0] if not is_loopback(host) else f"[{host}]" if ":" in host else host
    shown = shown if ":" in shown.rpartition("]")[2] else f"{shown}:{number}"

    def said(token: str) -> None:
        sys.stdout.write(f"for another browser: http://{shown}/login?token={token}\n")
        sys.stdout.flush()

    keys = Keys(said, program_key(home))
    address = f"http://{shown}/login?token={keys.token}"
    sys.stdout.write(f"the page of {home} is at {address}\n")
    sys.stdout.flush()
    if browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin"):
        webbrowser.open(address)
    serve(make_app(home, keys, number, ("127.0.0.1", "localhost", "[::1]", *allowed)), sock)


def program_key(home: Path) -> str | None:
    """Return the key for programs, which is in a file of the home, for its owner only; None where there is no such file."""
    path = home / KEY
    if home.is_dir():
        with suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(file, "w") as text:
                text.write(secrets.token_urlsafe(32))
    with suppress(OSError):
        return path.read_text().strip() or None
    return None
