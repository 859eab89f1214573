"""A process that has imported a framework and forks a worker for each run: `python -P -m det_core.forkserver`.

Importing a framework costs seconds; a fork, milliseconds. The server has one thread, imports nothing of the user's, and
ends when its driver is gone and its workers have ended. What a worker does to its memory, no other sees. What the first run
that ended well had imported of others' packages, the server imports then, so that later ones find it (det_core.ahead).

It is told of runs on a socket, a line of JSON each, with the end of a connection for it, and answers with lines: `unfit`
(why it cannot serve), `started`, `ended`, which says with `unstarted` that the machine could start no process.
"""

from __future__ import annotations

import atexit
import contextlib
import encodings.idna  # noqa: F401 - a worker's first connection needs it
import gc
import json
import os
import random
import selectors
import signal
import socket
import sys
import threading
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .ahead import Ahead
from .code import code_files
from .config import ExperimentConfig, masked
from .environ import WorkerEnv
from .errors import DetError
from .forks import Given, Shared, send_with
from .manifest import own_version
from .origin import brief, origin
from .plugins import Plugins
from .process import born, end_group, note_process
from .worker import checked, work

_MANY = 8  # runs, after which there is a fork in waiting, and pages are gathered, which takes a third of a second


def main(argv: list[str]) -> int:
    """Serve the driver at the other end of the socket with this number; what the code imports follows its directory."""
    channel = socket.socket(fileno=int(argv[0]))
    code_dir, modules = Path(argv[1]), argv[2:]
    gc.disable()  # what is imported is no garbage, and looking for it takes a fifth of the time
    plugins = Plugins.installed(strict=os.environ.get("DET_STRICT_PLUGINS") == "1")
    try:
        for name in plugins.frameworks_imported(modules):
            plugins.frameworks()[name].load()
        with contextlib.suppress(DetError):
            code_files(code_dir)  # compiles what every worker would
        reason = unfit(code_dir)
    except BaseException as error:  # a worker of its own will fail of it, and say so in the log of its run
        reason = f"{type(error).__name__}: {error}"
    if reason:
        channel.sendall(json.dumps({"unfit": reason}).encode() + b"\n")
        return 0
    own_version()
    for keep in (origin, brief, partial(born, os.getpid())):  # what they say of the interpreter and the machine is kept
        keep()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to every process of a job it is for the workers, which save
    _Server(channel, plugins, Ahead(code_dir, unfit)).serve()
    return 0


def unfit(code_dir: Path) -> str:
    """Say why a fork of this process would not be what a new interpreter in `code_dir` is; empty where it would."""
    names = {entry.name.partition(".")[0] for entry in os.scandir(code_dir)} if code_dir.is_dir() else set()
    shadowed = names & {name.partition(".")[0] for name in sys.modules}
    if shadowed:
        return f"{sorted(shadowed)[0]!r} in the code directory has the name of a module that is imported already"
    if len(os.listdir("/proc/self/task")) > 1:
        if (pid := os.fork()) == 0:  # libraries that can be forked, such as OpenBLAS, end their threads first
            os._exit(0)
        os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))
    return f"{threads} threads are running after the import" if threads > 1 else ""


class _Server:
    def __init__(self, channel: socket.socket, plugins: Plugins, ahead: Ahead) -> None:
        self._channel, self._plugins, self._ahead = channel, plugins, ahead
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._hear)
        # Of each run, the process, its descriptor and its directory:
        self._children: dict[int, tuple[int, int, Path]] = {}
        self._trying: tuple[int, int] | None = None  # the process of `ahead`, and its descriptor
        self._shared = Shared()
        self._ended = 0  # runs
        self._waiting: tuple[int, socket.socket] | None = None  # a fork that waits for the next run, and what it reads
        self._wanted = False  # such a fork
        self._shared.settle()
        self._rest, self._doors = b"", Given()  # the ends of connections, of the runs that are to be started
        self._alone = False  # the driver is gone
        self._first: WorkerEnv | None = None
        self._checked: ExperimentConfig | None = None
        self._described: dict[str, Any] | None = None  # that, as checkpoints hold it

    def serve(self) -> None:
        """Fork and reap until the driver is gone and every worker has ended."""
        while self._children or not self._alone:
            events = self._selector.select(0 if self._shared.scattered or self._wanted else None)
            for key, _ in events:
                key.data()
            if not events and self._shared.scattered:
                self._shared.gather()
            elif not events:
                with contextlib.suppress(OSError):  # the next run will see whether it can be started
                    self._waiting = self._fork()
                self._wanted = False
        self._dismiss()
        if self._trying is not None:
            os.kill(self._trying[0], signal.SIGKILL)
            os.waitpid(self._trying[0], 0)
        self._shared.release()

    def _hear(self) -> None:
        try:
            data = self._doors.receive(self._channel)
        except OSError:
            data = b""
        if not data:
            self._alone = True
            self._selector.unregister(self._channel)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "signal" not in request:
                self._start(request)
                self._doors.close(1)
            elif request["run"] in self._children:
                end_group(self._children[request["run"]][0], request["signal"])

    def _start(self, request: dict[str, Any]) -> None:
        if self._first is None:
            self._read(request["variables"])
        try:
            with open(os.devnull):  # there is a descriptor for the child's, so that it never runs unwatched
                door = self._doors.first()
                if self._waiting is None or os.waitpid(self._waiting[0], os.WNOHANG)[0]:  # it was killed
                    self._waiting = self._fork()
                (pid, channel), self._waiting = self._waiting, None
        except OSError as error:
            self._tell({"ended": request["run"], "status": 1, "unstarted": error.strerror})
            return
        descriptor = os.pidfd_open(pid)
        with contextlib.suppress(OSError), channel:  # one that was killed is heard of by its end
            send_with(channel, json.dumps(request).encode(), door)
        self._children[request["run"]] = pid, descriptor, Path(request["log_dir"])
        self._selector.register(descriptor, selectors.EVENT_READ, partial(self._reap, request["run"]))
        self._tell({"started": request["run"], "pid": pid})
        self._wanted = self._ended >= _MANY

    def _fork(self) -> tuple[int, socket.socket]:
        """Return a fork, which waits for its run, and where to tell it; it ends where that is closed."""
        server, (ours, theirs) = os.getpid(), socket.socketpair()
        self._shared.refresh()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            raise
        finally:
            if os.getpid() == server:
                theirs.close()
        if pid:
            return pid, ours
        ours.close()
        self._release()
        with theirs:
            text = (doors := Given()).receive(theirs)
            if not text:
                os._exit(0)
            request = json.loads(text + b"".join(iter(partial(theirs.recv, 1 << 20), b"")))
        env, joined = self._read(request["variables"]), socket.socket(fileno=doors.first())
        _be_worker(request, env, joined, self._plugins, server, self._ahead)
        raise AssertionError  # it has ended the process

    def _dismiss(self) -> None:
        """End the fork that waits, which is not what a later one is."""
        if self._waiting is not None:
            self._waiting[1].close()
            os.waitpid(self._waiting[0], 0)
        self._waiting, self._wanted = None, False

    def _release(self) -> None:
        """In a fork: close what is the server's."""
        for _, descriptor, _ in self._children.values():
            os.close(descriptor)
        self._doors.close()
        if self._trying is not None:
            os.close(self._trying[1])
        if self._waiting is not None:
            self._waiting[1].close()
        self._selector.close()
        self._channel.close()

    def _read(self, variables: dict[str, str]) -> WorkerEnv:
        """Return the run that variables describe, which costs a fork more; a configuration like the first is checked once."""
        env = WorkerEnv.read(os.environ | variables)
        assert env is not None
        if self._first is None:
            self._first = env
            with contextlib.suppress(DetError):  # one that plugins do not take is the child's to complain of
                self._checked = checked(env, self._plugins).config
                self._described = masked(self._checked)
        if self._checked is None or env.config is not self._first.config:
            return env
        return replace(env, config=self._checked, checked=True, described=self._described)

    def _reap(self, run: int) -> None:
        pid, descriptor, log_dir = self._children.pop(run)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        end_group(pid)  # before it is reaped, so that its number cannot be another's
        _, status = os.waitpid(pid, 0)
        self._tell({"ended": run, "status": os.waitstatus_to_exitcode(status)})
        self._ended += 1
        if self._ended == _MANY:
            self._shared.scatter()
        with contextlib.suppress(OSError):
            if trying := self._ahead.hear(log_dir, self._release):
                self._trying = trying, os.pidfd_open(trying)
                self._selector.register(self._trying[1], selectors.EVENT_READ, self._take)

    def _take(self) -> None:
        """Import what runs import, as it has been tried."""
        assert self._trying is not None
        pid, descriptor = self._trying
        self._selector.unregister(descriptor)
        os.close(descriptor)
        self._trying = None
        self._dismiss()
        self._ahead.take(well=os.waitpid(pid, 0)[1] == 0)
        self._shared.settle()
        if self._ended >= _MANY:
            self._shared.scatter()

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")


def _be_worker(
    request: dict[str, Any], env: WorkerEnv, joined: socket.socket, plugins: Plugins, server: int, ahead: Ahead
) -> None:
    """Become what a new interpreter would be for this run, which is connected already, train, and end."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        log_dir = Path(request["log_dir"])
        with (log_dir / "rank-0.log").open("ab") as log, open(os.devnull, "rb") as nothing:
            for source, target in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(source.fileno(), target)
        note_process(log_dir, os.getpid())
        if os.getppid() != server:
            os._exit(1)  # nobody would hear of it
        os.environ.update(request["variables"])
        os.chdir(request["code_dir"])
        sys.path.insert(0, request["code_dir"])
        sys.argv[1:] = [request["entrypoint"]]
        random.seed()  # as a new interpreter does, so that forks do not share what nobody seeds
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        gc.enable()
        status = work(env, request["entrypoint"], Path(request["code_dir"]), plugins=plugins, joined=joined)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        if not status:
            ahead.tell(Path(request["log_dir"]))
        _end(status)


def _end(status: int) -> None:
    """End as an interpreter does, without taking down every module one by one."""
    with contextlib.suppress(BaseException):
        getattr(threading, "_shutdown")()  # noqa: B009 - waits for threads that are no daemons; typeshed hides it
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
