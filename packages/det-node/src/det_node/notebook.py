"""JupyterLab as a process of a run: on loopback, or on a Unix socket behind a server of det.

On loopback it has a token, which is in files that only their user can read, in no log and on no
command line.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from det_core.support.threads import start_thread
from det_node.limits import end_in_time

LOOPBACK, UNIX = "loopback", "unix"
"""Where a notebook listens."""
SOCKET = "notebook"
"""The socket in the scratch directory of a run, for a notebook that listens on `UNIX`."""
INFO = "notebook.json"
"""The file in the scratch directory with the address. It exists once the notebook answers."""
_PORT, _PORTS = 8888, 200
_REPLY_SECONDS = 5.0
_START_PAUSE_SECONDS = 0.1
_START_SECONDS = 300.0
"""How long Jupyter may take to start before it counts as idle."""
_MOST_PAUSE_SECONDS = 10.0
"""How often Jupyter is asked at least whether it is idle."""


def base_url(experiment: object) -> str:
    """Return the path below which a server of det has a notebook."""
    return f"/notebooks/{experiment}/"


def is_installed() -> bool:
    """Return whether this Python environment has JupyterLab."""
    return importlib.util.find_spec("jupyterlab") is not None


def missing() -> str:
    """Return a sentence that says how to install JupyterLab."""
    return (
        f"JupyterLab is not installed in this environment; run: {sys.executable} -m pip install"
        " jupyterlab"
    )


def serve_notebook(
    listens: str, directory: Path, max_seconds: float | None, idle_seconds: float | None
) -> int:
    """Run JupyterLab in a directory until it ends or reaches a limit, and return its exit status.

    It is idle while no cell runs, and kernels and terminals do nothing. An open page is no
    activity.
    """
    if os.environ["DET_TRIAL_RUN_ID"] != "1":
        # Its kernels, and what they had in memory, are gone.
        sys.stderr.write("det: a notebook that was preempted or has lost its driver has ended\n")
        return 0
    if not is_installed():
        sys.stderr.write(f"det: {missing()}\n")
        return 127
    scratch = Path(os.environ["DET_SCRATCH_DIR"])
    private = scratch / "jupyter"
    private.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch.chmod(0o700)
    # Paths of sockets have at most 108 bytes.
    folder = os.open(scratch, os.O_PATH | os.O_DIRECTORY)
    settings = private / "config.json"
    _write(settings, json.dumps(_settings(listens, directory, f"/proc/self/fd/{folder}/{SOCKET}")))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "jupyterlab", f"--config={settings}"],
        cwd=directory,
        env={**os.environ, "JUPYTER_RUNTIME_DIR": str(private)},
        pass_fds=(folder,),
    )
    jupyter = _Jupyter(private / f"jpserver-{process.pid}.json", idle_seconds)
    start_thread(_publish, jupyter, process, scratch / INFO, name="det-notebook")
    try:
        return end_in_time(process, "notebook", max_seconds, idle_seconds, jupyter.was_active)
    finally:
        (scratch / INFO).unlink(missing_ok=True)


def _settings(listens: str, directory: Path, place: str) -> dict[str, Any]:
    """Return the configuration of Jupyter, which goes before that of the user.

    A password of the user's, or another way to sign in, would not work through a server of det.
    Another address would let in other machines.
    """
    common = {
        "root_dir": str(directory.absolute()),
        "open_browser": False,
        "allow_root": os.geteuid() == 0,
        "allow_origin": "",
        "allow_origin_pat": "",
        "allow_credentials": False,
        "certfile": "",
        "keyfile": "",
        "client_ca": "",
        "custom_display_url": "",
    }
    if listens == UNIX:
        # The server of det has decided who may come, and from which page. Programs have no cookie.
        own = {
            "sock": place,
            "sock_mode": "0600",
            "base_url": base_url(os.environ["DET_EXPERIMENT_ID"]),
            "allow_remote_access": True,
            "disable_check_xsrf": True,
        }
    else:
        own = {
            "sock": "",
            "ip": "127.0.0.1",
            "port": _PORT,
            "port_retries": _PORTS,
            "base_url": "/",
            "allow_remote_access": False,
            "disable_check_xsrf": False,
        }
    token = "" if listens == UNIX else secrets.token_urlsafe(32)
    return {
        "ServerApp": common | own,
        "IdentityProvider": {"token": token},
        # No password at all: there is a token, or the server of det decides.
        "PasswordIdentityProvider": {"hashed_password": "", "password_required": False},  # nosec B105
    }


def _publish(jupyter: _Jupyter, process: subprocess.Popen[bytes], file: Path) -> None:
    """Write the address to a file as soon as Jupyter answers."""
    while process.poll() is None:
        with suppress(OSError, ValueError, http.client.HTTPException):
            if jupyter.get("api") is not None:
                _write(file, json.dumps({"address": jupyter.address, "page": str(jupyter.page)}))
                return
        time.sleep(_START_PAUSE_SECONDS)


def _write(file: Path, content: str) -> None:
    """Write a file that only this user can read, atomically."""
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(content)
    new.replace(file)


class _Jupyter:
    """The server that this process has started, by the file in which Jupyter says where it is."""

    def __init__(self, file: Path, idle_seconds: float | None) -> None:
        self._file = file
        self._pause = min(_MOST_PAUSE_SECONDS, (idle_seconds or 0.0) / 4)
        self._next = 0.0
        self._seen: object = None
        self._starts_until = time.monotonic() + _START_SECONDS

    @property
    def info(self) -> dict[str, Any]:
        """Return what Jupyter says of itself. Raises OSError or ValueError before it does."""
        found: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        return found

    @property
    def address(self) -> str:
        """Return the address for a browser, or an empty text behind a server of det."""
        info = self.info
        return "" if info["sock"] else f"{info['url']}lab?token={quote(info['token'], safe='')}"

    @property
    def page(self) -> Path:
        """Return the file that leads a browser to the address."""
        return self._file.with_name(f"{self._file.stem}-open.html")

    def was_active(self) -> bool:
        """Return whether a cell runs, or something has changed since Jupyter was asked last."""
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._pause
        try:
            kernels, terminals = self.get("api/kernels"), self.get("api/terminals")
        except (OSError, ValueError, http.client.HTTPException):
            # While it does not answer, nobody can use it.
            return self._seen is None and time.monotonic() < self._starts_until
        # Terminals may be switched off.
        found = kernels or [], terminals or []
        changed, self._seen = found != self._seen, found
        return changed or any(each.get("execution_state") == "busy" for each in found[0])

    def get(self, path: str) -> Any:
        """Return what Jupyter answers, or None where it has nothing at this path."""
        info = self.info
        connection = http.client.HTTPConnection("127.0.0.1", timeout=_REPLY_SECONDS)
        connection.sock = self._connect(info)
        with closing(connection):
            authorization = {"Authorization": f"token {info['token']}"} if info["token"] else {}
            connection.request("GET", f"{info['base_url']}{path}", headers=authorization)
            response = connection.getresponse()
            content = response.read()
        return json.loads(content) if response.status == 200 else None

    def _connect(self, info: dict[str, Any]) -> socket.socket:
        if not info["sock"]:
            port = urlsplit(info["url"]).port or 0
            return socket.create_connection(("127.0.0.1", port), _REPLY_SECONDS)
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(_REPLY_SECONDS)
        try:
            # The path is that of a descriptor, which this process has, too.
            connected.connect(info["sock"])
        except OSError:
            connected.close()
            raise
        return connected
