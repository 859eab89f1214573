"""A fork server for drivers: `python -P -m det_driver.cli.fork_server LISTENER LIFELINE`.

It has one thread, imports what a driver needs, and forks a driver for each connection to the
listening socket. A connection has one request, in JSON: the number of the experiment, the
interpreter and the environment. The descriptor of the driver's log comes with it. The replies are
`pid`, when the driver has started, and `status`, when it has ended. Without a reply, a fork would
differ from a new interpreter.

The server ends when the other end of the socket LIFELINE is closed. Its drivers go on.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import selectors
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from det_core.config import from_json
from det_core.hooks import Plugins
from det_node.forks import SharedPages

from ..tensorboard import RECORD_WRITER
from ._main import main

_NEEDED = (
    "det_driver.cli._run",
    "det_driver.cli._drive",
    "det_driver.engines.local",
)
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_LONGEST = 1 << 20


class _Request(msgspec.Struct):
    experiment: int
    python: str
    environ: dict[str, str]


_decode = msgspec.json.Decoder(_Request).decode


class _Server:
    def __init__(self, listener: socket.socket, lifeline: socket.socket) -> None:
        self._listener, self._lifeline = listener, lifeline
        self._selector = selectors.DefaultSelector()
        # What is open, except for standard streams. A fork closes it.
        self._open: dict[int, socket.socket | int] = {}
        self._watch(listener, self._accept)
        self._watch(lifeline, lambda: None)
        self._shared = SharedPages()
        self._shared.freeze()

    def serve(self) -> int | None:
        """Fork drivers until the lifeline ends. Return None, or the experiment in a fork."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._lifeline:
                    self._shared.release()
                    return None
                experiment: int | None = key.data()
                if experiment is not None:
                    return experiment

    def _watch(self, file: socket.socket | int, act: Callable[[], int | None]) -> None:
        self._selector.register(file, selectors.EVENT_READ, act)
        self._open[file if isinstance(file, int) else file.fileno()] = file

    def _close(self, file: socket.socket | int) -> None:
        self._selector.unregister(file)
        if isinstance(file, int):
            del self._open[file]
            os.close(file)
        else:
            del self._open[file.fileno()]
            file.close()

    def _accept(self) -> None:
        # The client may be gone, or no more files can be opened.
        with suppress(OSError):
            connection, _ = self._listener.accept()
            self._watch(connection, partial(self._receive, connection))

    def _receive(self, connection: socket.socket) -> int | None:
        """Fork a driver for a request. Return the experiment in the fork, else None."""
        files: list[int] = []
        pid = None
        with suppress(OSError, msgspec.DecodeError):
            data, files, _, _ = socket.recv_fds(connection, _LONGEST, 1)
            request = _decode(data)
            if files and _is_alike(request):
                self._shared.refresh()
                # Reserves a descriptor for the driver's pidfd, so that no driver runs unwatched.
                with open(os.devnull):
                    pid = os.fork()
        if pid == 0:
            self._become_driver(request.environ, files[0])
            return request.experiment
        for file in files:
            os.close(file)
        if pid is None:
            self._close(connection)
            return None
        # The client closes the connection while the driver goes on.
        self._selector.unregister(connection)
        driver = os.pidfd_open(pid)
        self._watch(driver, partial(self._reap, driver, pid, connection))
        _reply(connection, pid=pid)
        return None

    def _become_driver(self, environ: Mapping[str, str], log: int) -> None:
        """Turn this fork into what a new interpreter would be."""
        os.setsid()
        for target in (1, 2):
            os.dup2(log, target)
        os.close(log)
        self._selector.close()
        for file in self._open.values():
            os.close(file) if isinstance(file, int) else file.close()
        os.environ.clear()
        os.environ.update(environ)
        # Packages may have been installed since.
        importlib.invalidate_caches()
        random.seed()
        gc.enable()

    def _reap(self, driver: int, pid: int, connection: socket.socket) -> None:
        self._close(driver)
        _, status = os.waitpid(pid, 0)
        _reply(connection, status=os.waitstatus_to_exitcode(status))
        del self._open[connection.fileno()]
        connection.close()


def _is_alike(request: _Request) -> bool:
    """Return whether a fork is as good as a new interpreter: only variables of det's differ."""
    names = request.environ.keys() | os.environ.keys()
    changed = {name for name in names if request.environ.get(name) != os.environ.get(name)}
    return request.python == sys.executable and all(name.startswith("DET_") for name in changed)


def _reply(connection: socket.socket, **content: int) -> None:
    # Nobody may wait for it any more.
    with suppress(OSError):
        connection.send(json.dumps(content).encode())


def _import_needed() -> None:
    """Import what a driver needs. A driver reports what fails here, as it imports it again."""
    # Imports leave no garbage, and collection would take a fifth of their time.
    gc.disable()
    for name in _NEEDED:
        importlib.import_module(name)
    # It inspects the types of configurations, as each fork would do again.
    from_json("{}")
    # It imports the hook modules of all plugins.
    Plugins.installed(warn=lambda text: None)
    before = os.environ.get(_BLAS_THREADS)
    # numpy, which TensorBoard imports, would start threads, and a fork has none of them.
    os.environ[_BLAS_THREADS] = "1"
    with suppress(Exception):
        importlib.import_module(RECORD_WRITER)
    if before is None:
        del os.environ[_BLAS_THREADS]
    else:
        os.environ[_BLAS_THREADS] = before


def _serve(listener: int, lifeline: int) -> int | None:
    _import_needed()
    return _Server(socket.socket(fileno=listener), socket.socket(fileno=lifeline)).serve()


if __name__ == "__main__" and (experiment := _serve(*map(int, sys.argv[1:]))) is not None:
    sys.argv = [str(Path(__file__).with_name("__main__.py")), "resume", str(experiment)]
    main()
