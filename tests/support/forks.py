"""Processes of det as forks of one that has imported all that they import.

They start in milliseconds, and are real otherwise.

What is started as `python -m det_driver.cli`, and what that starts as `python -m` again (an agent,
a fork server), is forked here, with the arguments, variables, directory and descriptors that it was
to have.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

MAINS = {
    "det_driver.cli": "det_driver.cli._main:main",
    "det_node.agent": "det_node.agent._agent:main",
    "det_node.forkserver": "det_node.forkserver:main",
}
CONFIGURATION = {
    "entrypoint": "model_def:Trial",
    "searcher": {
        "name": "async_halving",
        "metric": "loss",
        "max_length": {"batches": 4},
        "max_trials": 1,
        "num_rungs": 1,
    },
}
_ABOVE = 512  # the descriptors of a request are kept there until they have their places
_start = subprocess.Popen


class Forked:
    """What `subprocess.Popen` is to who starts one of det's processes.

    The server at the socket `place` forks it.
    """

    place: Path

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
    ) -> None:
        self.args, self.returncode, self.stdin = argv, None, None
        self._lock = threading.Lock()
        with open(os.devnull, "r+b") as nothing:
            ours: list[int] = []
            if stdin is subprocess.PIPE:
                stdin, held = os.pipe()
                ours, self.stdin = [stdin], os.fdopen(held, "wb")
            given = [
                _descriptor(each, nothing.fileno(), k)
                for k, each in enumerate((stdin, stdout, stderr))
            ]
            request = {
                "argv": [str(word) for word in argv],
                "env": dict(os.environ if env is None else env),
                "cwd": str(cwd or os.getcwd()),
                "session": start_new_session,
                "places": [0, 1, 2, *pass_fds],
            }
            self._server = socket.socket(socket.AF_UNIX)
            self._server.connect(str(self.place))
            socket.send_fds(self._server, [b"{"], [*given, *pass_fds])
            self._server.sendall(json.dumps(request).encode()[1:])
            self._server.shutdown(socket.SHUT_WR)
            for each in ours:
                os.close(each)
        self._said = self._server.makefile("rb")
        self.pid = int(self._said.readline())

    def poll(self) -> int | None:
        with suppress(TimeoutError):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Return its status, a signal's as a negative number.

        TimeoutError where it goes on for so many seconds.
        """
        with self._lock, selectors.DefaultSelector() as selector:
            if self.returncode is None:
                selector.register(self._server, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise TimeoutError(f"process {self.pid} has not ended: {self.args}")
                self.returncode = int(self._said.readline() or -9)  # with its server
                self._server.close()
            return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _descriptor(given: Any, nothing: int, own: int) -> int:
    if given is None:
        return own
    return (
        nothing
        if given is subprocess.DEVNULL
        else given
        if isinstance(given, int)
        else int(given.fileno())
    )


@contextmanager
def serving(place: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Fork what is asked for at the socket `place`. At the end, all forks have to end soon."""
    code = [sys.executable, "-P", __file__, str(place)]
    server = _start(code, env=env, cwd=place.parent, start_new_session=True)
    try:
        while not place.exists():
            assert server.poll() is None
            time.sleep(0.01)
        yield
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        began = time.monotonic()
        while left := children.read_text():
            assert time.monotonic() < began + 60, f"processes left behind: {left}"
            time.sleep(0.05)
    finally:
        server.kill()
        server.wait()


def popen(argv: Sequence[str], **options: Any) -> Any:
    """Start a process: one of det's as a fork."""
    return Forked(argv, **options) if _main_of(argv) else _start(argv, **options)


def _main_of(argv: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return which of det's a command is, and its arguments."""
    words = [word for word in argv[:4] if word != "-P"]
    if len(words) > 2 and words[0] == sys.executable and words[1] == "-m" and words[2] in MAINS:
        return MAINS[words[2]], list(argv[argv.index(words[2]) + 1 :])
    return None


def serve(place: str) -> None:
    """Fork what is asked for at this socket, and tell who asked how it ended."""
    Forked.place = Path(place)
    subprocess.Popen = popen  # type: ignore[misc, assignment]
    _read_once()
    for main in MAINS.values():
        importlib.import_module(main.partition(":")[0])
    importlib.import_module("det_core").Plugins.installed()
    importlib.import_module("det_core.config").parse(dict(CONFIGURATION))
    with socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as selector:
        server.bind(place)
        server.listen(128)
        selector.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is server:
                    asked = server.accept()[0]
                    pid = _fork(asked)
                    asked.sendall(b"%d\n" % pid)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, asked))
                    continue
                pid, asked = key.data
                selector.unregister(key.fileobj)
                os.close(int(key.fd))
                _, status = os.waitpid(pid, 0)
                _learn()
                with suppress(OSError), asked:  # who asked is gone
                    asked.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _read_once() -> None:
    """What is installed does not change.

    Each process would read some hundred files to find its plugins.
    """
    metadata.entry_points, metadata.version = cache(metadata.entry_points), cache(metadata.version)  # type: ignore[assignment]
    kept = cached_property(metadata.Distribution.metadata.fget)  # type: ignore[attr-defined]
    kept.__set_name__(metadata.Distribution, "metadata")
    metadata.Distribution.metadata = kept  # type: ignore[assignment, method-assign]


def _learn() -> None:
    """Import what processes before have imported, so that those after them need not."""
    for learnt in Forked.place.parent.glob(f"{Forked.place.name}.*.modules"):
        names = learnt.read_text().split()
        learnt.unlink()
        for name in names:
            with suppress(ImportError):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # so that its pages stay shared


def _fork(asked: socket.socket) -> int:
    data, descriptors, _, _ = socket.recv_fds(asked, 1 << 16, 16)
    while more := asked.recv(1 << 16):
        data += more
    pid = os.fork()
    if pid == 0:
        _become(json.loads(data), descriptors)
    for each in descriptors:
        os.close(each)
    return pid


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be what a new interpreter would be for this command, and end."""
    import ctypes
    import fcntl

    from det_node.forkserver import _exit

    status = 1
    try:
        if request["session"]:
            os.setsid()
        atexit.register(_teach, set(sys.modules))  # a fork server's workers do so, too
        high = [fcntl.fcntl(each, fcntl.F_DUPFD, _ABOVE) for each in descriptors]
        os.closerange(3, _ABOVE)
        for source, target in zip(high, request["places"], strict=True):
            os.dup2(source, target)
        os.closerange(_ABOVE, _ABOVE + 64)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        if "FAULT_ROOT" in os.environ:
            ctypes.CDLL(None).faults_arm()
            for name in [name for name in os.environ if name.startswith("FAULT_")]:
                del os.environ[name]
        found = _main_of(request["argv"])
        assert found
        (module, _, function), sys.argv = found[0].partition(":"), ["det", *found[1]]
        status = getattr(importlib.import_module(module), function)(found[1])
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _exit(status)


def _teach(before: set[str]) -> None:
    """Say what this process has imported, but for what is the user's."""
    new = {
        name: str(getattr(sys.modules[name], "__file__", "")) for name in set(sys.modules) - before
    }
    installed = [name for name, file in new.items() if not file.startswith(os.environ["DET_HOME"])]
    if installed:
        file = Path(f"{Forked.place}.{os.getpid()}")
        with suppress(OSError):
            file.write_text("\n".join(sorted(installed)))
            file.rename(f"{file}.modules")


if __name__ == "__main__":
    serve(sys.argv[1])
