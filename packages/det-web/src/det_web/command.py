"""The command `det ui`."""

from __future__ import annotations

import fcntl
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
from click.core import ParameterSource

from det_core.errors import DetError
from det_core.ranks.network import is_loopback
from det_core.support.threads import start_thread

PORT = 8090
KEY = "ui.key"
"""The file in the home with the key for programs."""
KEPT, KEPT_LOG = "ui.kept", "ui.log"
"""Two files in the home: the one that the background page holds a lock on, with its process id and
port, and its output."""
_KEPT_SECONDS, _LOCK_SECONDS = 60.0, 1.0


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help=f"The port to listen on: {PORT}, or any that is free.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--allow-host",
    "allowed",
    multiple=True,
    metavar="NAME",
    help="Another name of this server. May be repeated.",
)
@click.option(
    "--browser/--no-browser",
    default=True,
    help="Open a browser (the default, where there is a display).",
)
@click.option(
    "--keep", is_flag=True, help="Leave the page in the background, where it stays until --stop."
)
@click.option("--stop", is_flag=True, help="Stop the page that --keep left in the background.")
@click.option("--kept", is_flag=True, hidden=True, help="As the page in the background.")
@click.pass_obj
def ui(
    settings: object,
    port: int | None,
    host: str,
    allowed: tuple[str, ...],
    browser: bool,
    keep: bool,
    stop: bool,
    kept: bool,
) -> None:
    """Open the page: experiments, trials, curves and logs, live, and what may be done about them.

    It listens on this machine only; from another one, forward the port (ssh -L), or name the host
    by which that one reaches it (--host, --allow-host). The address that is printed is good for one
    browser, and secret. With a det server (det login), its page is opened instead.
    """
    if server := getattr(settings, "server", ""):
        _open_server(server, browser)
        return
    home = find_home(settings)
    if stop:
        _stop(home)
        return
    if not is_loopback(host) and not allowed:
        raise DetError(
            f"--host {host} is for other machines too; name the host by which they reach this one:"
            " --allow-host NAME"
        )
    if keep:
        options = [f"--host={host}", *(f"--allow-host={name}" for name in allowed)]
        redirect = _keep(home, options + ([f"--port={port}"] if port is not None else []))
        sys.stdout.write(
            f"the page of {home} is at {redirect.address()}; it stays until: det ui --stop\n"
        )
        if browser:
            redirect.open()
        return
    _serve(home, port, host, allowed, browser, kept)


def _open_server(address: str, browser: bool) -> None:
    context = click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is not ParameterSource.DEFAULT
        if given and parameter.name != "browser":
            raise DetError(
                f"det ui with {parameter.opts[-1]} is about the page of this machine, and not of"
                f" {address}; with the home of this machine: det -m '' ui"
            )
    sys.stdout.write(f"the page is at {address}/\n")
    sys.stdout.flush()
    if browser and _has_display():
        with suppress(webbrowser.Error, OSError):
            webbrowser.open(f"{address}/")


def _has_display() -> bool:
    return bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin"
    )


def find_home(settings: object) -> Path:
    """Return the home that a command is about: that of its settings, $DET_HOME, or ~/.det."""
    found = getattr(settings, "home", None) or os.environ.get("DET_HOME") or Path.home() / ".det"
    return Path(found).absolute()


def _serve(
    home: Path, port: int | None, host: str, allowed: tuple[str, ...], browser: bool, kept: bool
) -> None:
    from .app import make_app
    from .guard import LOOPBACK, Keys
    from .serve import listening, serve

    try:
        sock = listening(host, PORT if port is None else port)
    except DetError:
        if port is not None:
            raise
        sock = listening(host, 0)
    number = sock.getsockname()[1]
    shown = allowed[0] if not is_loopback(host) else f"[{host}]" if ":" in host else host
    shown = shown if ":" in shown.rpartition("]")[2] else f"{shown}:{number}"

    def address(token: str) -> str:
        return f"http://{shown}/login?token={token}"

    def on_token(token: str) -> None:
        redirect.write(address(token))
        if not kept:
            sys.stdout.write(f"for another browser: {address(token)}\n")
            sys.stdout.flush()

    # SIGTERM before the server runs exits normally too, so that the file is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _redirect(home, number) as redirect:
        keys = Keys(on_token, program_key(home))
        redirect.write(address(keys.token))
        held = _hold(home, number) if kept else None
        if not kept:
            sys.stdout.write(f"the page of {home} is at {address(keys.token)}\n")
            sys.stdout.flush()
            if browser:
                redirect.open()
        serve(make_app(home, keys, number, {*LOOPBACK, *allowed}), sock)
        if held is not None:
            os.close(held)


class Redirect:
    """A file that only its owner can read, which redirects a browser to the page.

    Other users can read command lines. So a browser gets the file's path, and not the token.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, address: str) -> None:
        """Redirect to another address. The file is replaced atomically."""
        new = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with suppress(FileNotFoundError):
            new.unlink()
        with os.fdopen(
            os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(
                '<!doctype html><meta charset="utf-8"><meta name="referrer"'
                ' content="no-referrer"><title>det</title>\n<meta http-equiv="refresh"'
                f' content="0;url={address}">\n<a href="{address}">det</a>\n'
            )
        new.replace(self.path)

    def address(self) -> str:
        """Return the address that the file redirects to."""
        return self.path.read_text(encoding="utf-8").rpartition('<a href="')[2].partition('"')[0]

    def open(self) -> None:
        """Open the file in a browser, where there is a display.

        It does not block, even if the browser runs in the foreground.
        """
        if _has_display():
            start_thread(self._open, name="det-browser")

    def _open(self) -> None:
        with suppress(webbrowser.Error, OSError):
            webbrowser.open(self.path.as_uri())


@contextmanager
def _redirect(home: Path, port: int) -> Iterator[Redirect]:
    """Yield the file for a port, and remove it at the end.

    It lies in the home, or in a temporary directory where the home does not exist.
    """
    if not home.is_dir():
        with tempfile.TemporaryDirectory(prefix="det-ui-") as folder:
            yield Redirect(Path(folder) / "ui.html")
        return
    redirect = Redirect(_path(home, port))
    try:
        yield redirect
    finally:
        redirect.path.unlink(missing_ok=True)


def _path(home: Path, port: int) -> Path:
    return home / f"ui-{port}.html"


def _keep(home: Path, options: list[str]) -> Redirect:
    """Start the page in the background, unless one runs, and return the file that leads to it."""
    if (there := _kept(home)) is not None:
        return Redirect(_path(home, there[1]))
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = os.open(home / KEPT_LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    argv = [sys.executable, "-P", "-m", "det_driver.cli", "ui", "--kept", "--no-browser", *options]
    process = subprocess.Popen(
        argv,
        cwd="/",
        env={**os.environ, "DET_HOME": str(home), "DET_MASTER": ""},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    os.close(log)
    deadline = time.monotonic() + _KEPT_SECONDS
    while time.monotonic() < deadline:
        if (there := _kept(home)) is not None:
            return Redirect(_path(home, there[1]))
        if process.poll() is not None:
            raise DetError(
                (home / KEPT_LOG).read_text(errors="replace").strip().removeprefix("det: ")
                or "it ended"
            )
        time.sleep(0.05)
    process.terminate()
    raise DetError(
        f"the page did not come up within {_KEPT_SECONDS:.0f} s; {home / KEPT_LOG} has what it"
        " printed"
    )


def _stop(home: Path) -> None:
    if (there := _kept(home)) is None:
        raise DetError(f"no page of {home} is in the background; det ui --keep leaves one there")
    os.kill(there[0], signal.SIGTERM)
    while _kept(home) is not None:
        time.sleep(0.05)
    sys.stdout.write(f"the page of {home} is stopped\n")


def _hold(home: Path, port: int) -> int:
    """Lock the file of the background page for this process, and return the descriptor.

    Raises DetError where another process holds the lock.
    """
    from .serve import hold

    try:
        return hold(home / KEPT, f"{os.getpid()} {port}", _LOCK_SECONDS)
    except BlockingIOError:
        raise DetError(
            f"a page of {home} is in the background already; see it with: det ui --keep"
        ) from None


def _kept(home: Path) -> tuple[int, int] | None:
    """Return the process id and the port of the background page. None where none runs."""
    try:
        file = os.open(home / KEPT, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid, _, port = os.read(file, 100).decode().partition(" ")
        return (int(pid), int(port)) if port else None
    finally:
        os.close(file)
    return None


def program_key(home: Path) -> str | None:
    """Return the key for programs, from a file in the home that only its owner can read.

    The file is created if it does not exist. Returns None where it cannot be read.
    """
    path = home / KEY
    if home.is_dir():
        with suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(file, "w") as text:
                text.write(secrets.token_urlsafe(32))
    with suppress(OSError):
        return path.read_text().strip() or None
    return None
