"""A fork server, which imports a framework and forks a worker for each run.

It is started as `python -P -m det_node.forkserver`. Importing a framework takes seconds, and a fork
takes milliseconds. The server has one thread and imports none of the user's code. It ends when the
agent is gone and its workers have ended. A worker's changes to memory do not reach other workers.
After the first run that ended well, the server imports the third-party packages that this run had
imported, for later runs (det_node.preimport).

The server reads requests from a socket: one line of JSON per run, with one end of the run's
connection as a descriptor. It replies with lines of JSON:

- `unfit`: why it cannot serve.
- `started`: a run has its process.
- `ended`: a run has ended. With `unstarted`, the node could start no process.
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

from det_core.checkpoint.code import code_files
from det_core.config import ExperimentConfig, masked
from det_core.errors import DetError
from det_core.hooks import Plugins
from det_core.support.installation import own_version
from det_core.support.origin import brief, origin
from det_core.train.environ import WorkerEnv
from det_core.train.run_setup import checked

from .forks import Given, SharedPages, send_with
from .preimport import Preimporter
from .process import end_group, note_process, process_identity
from .worker import work

# After so many runs a fork waits in advance, and pages are collapsed, which takes a third of a
# second.
_MANY = 8


def main(argv: list[str]) -> int:
    """Serve the agent at the other end of the socket with the descriptor `argv[0]`.

    `argv[1]` is the code directory. The modules that the code imports follow.
    """
    channel = socket.socket(fileno=int(argv[0]))
    code_dir, modules = Path(argv[1]), argv[2:]
    # Imports leave no garbage, and collection would take a fifth of their time.
    gc.disable()
    plugins = Plugins.installed(strict=os.environ.get("DET_STRICT_PLUGINS") == "1")
    try:
        for name in plugins.frameworks_imported(modules):
            plugins.frameworks()[name].load()
        with contextlib.suppress(DetError):
            # It compiles code that every worker would compile.
            code_files(code_dir)
        reason = unfit(code_dir)
    except BaseException as error:
        # A worker without the server fails in the same way, and logs it.
        reason = f"{type(error).__name__}: {error}"
    if reason:
        channel.sendall(json.dumps({"unfit": reason}).encode() + b"\n")
        return 0
    own_version()
    # Their results, which describe the interpreter and the machine, are cached.
    for describe in (origin, brief, partial(process_identity, os.getpid())):
        describe()
    # A SIGTERM for every process of a job is meant for the workers, which save.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _Server(channel, plugins, Preimporter(code_dir, unfit)).serve()
    return 0


def unfit(code_dir: Path) -> str:
    """Return why a fork of this process would differ from a new interpreter in `code_dir`.

    The text is empty where it would not.
    """
    names = (
        {entry.name.partition(".")[0] for entry in os.scandir(code_dir)}
        if code_dir.is_dir()
        else set()
    )
    shadowed = names & {name.partition(".")[0] for name in sys.modules}
    if shadowed:
        return (
            f"{sorted(shadowed)[0]!r} in the code directory has the name of a module that is"
            " imported already"
        )
    if len(os.listdir("/proc/self/task")) > 1:
        # Libraries that can be forked, such as OpenBLAS, end their threads before a fork.
        if (pid := os.fork()) == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))
    return f"{threads} threads are running after the import" if threads > 1 else ""


class _Server:
    def __init__(self, channel: socket.socket, plugins: Plugins, preimporter: Preimporter) -> None:
        self._channel, self._plugins, self._preimporter = channel, plugins, preimporter
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, self._receive)
        # By run: its process, the process's descriptor, and the run's log directory.
        self._children: dict[int, tuple[int, int, Path]] = {}
        # The process that tries imports for `preimporter`, and its descriptor.
        self._trial_process: tuple[int, int] | None = None
        self._shared = SharedPages()
        # The number of runs that have ended.
        self._ended = 0
        # A fork that waits for the next run, and the socket on which it gets that.
        self._waiting: tuple[int, socket.socket] | None = None
        # Whether a fork in advance is wanted.
        self._wanted = False
        self._shared.freeze()
        # A partial line, and the connections of runs that have not been started.
        self._partial_line, self._connections = b"", Given()
        # Whether the agent is gone.
        self._agent_is_gone = False
        self._first: WorkerEnv | None = None
        self._checked: ExperimentConfig | None = None
        # `_checked` as checkpoints store it.
        self._described: dict[str, Any] | None = None

    def serve(self) -> None:
        """Fork and reap workers until the agent is gone and every worker has ended."""
        while self._children or not self._agent_is_gone:
            events = self._selector.select(0 if self._shared.uncollapsed or self._wanted else None)
            for key, _ in events:
                key.data()
            if not events and self._shared.uncollapsed:
                self._shared.collapse_next()
            elif not events:
                # The next run finds out whether it can be started.
                with contextlib.suppress(OSError):
                    self._waiting = self._fork()
                self._wanted = False
        self._end_waiting_fork()
        if self._trial_process is not None:
            os.kill(self._trial_process[0], signal.SIGKILL)
            os.waitpid(self._trial_process[0], 0)
        self._shared.release()

    def _receive(self) -> None:
        try:
            data = self._connections.receive(self._channel)
        except OSError:
            data = b""
        if not data:
            self._agent_is_gone = True
            self._selector.unregister(self._channel)
            return
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "signal" not in request:
                self._start(request)
                self._connections.close(1)
            elif request["run"] in self._children:
                end_group(self._children[request["run"]][0], request["signal"])

    def _start(self, request: dict[str, Any]) -> None:
        if self._first is None:
            self._read(request["variables"])
        try:
            # Reserves a descriptor for the child's pidfd, so that no child runs unwatched.
            with open(os.devnull):
                connection = self._connections.first()
                # A new fork is also needed where the waiting one was killed.
                if self._waiting is None or os.waitpid(self._waiting[0], os.WNOHANG)[0]:
                    self._waiting = self._fork()
                (pid, channel), self._waiting = self._waiting, None
        except OSError as error:
            self._send({"ended": request["run"], "status": 1, "unstarted": error.strerror})
            return
        descriptor = os.pidfd_open(pid)
        # The end of a killed fork is noticed by its pidfd.
        with contextlib.suppress(OSError), channel:
            send_with(channel, json.dumps(request).encode(), connection)
        self._children[request["run"]] = pid, descriptor, Path(request["log_dir"])
        self._selector.register(
            descriptor, selectors.EVENT_READ, partial(self._reap, request["run"])
        )
        self._send({"started": request["run"], "pid": pid})
        self._wanted = self._ended >= _MANY

    def _fork(self) -> tuple[int, socket.socket]:
        """Return a fork that waits for its run, and the socket on which to send the run.

        The fork ends when the socket is closed.
        """
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
            text = (connections := Given()).receive(theirs)
            if not text:
                os._exit(0)
            request = json.loads(text + b"".join(iter(partial(theirs.recv, 1 << 20), b"")))
        env, joined = self._read(request["variables"]), socket.socket(fileno=connections.first())
        _run_worker(request, env, joined, self._plugins, server, self._preimporter)
        # `_run_worker` has ended the process.
        raise AssertionError

    def _end_waiting_fork(self) -> None:
        """End the waiting fork, as a later fork would differ from it."""
        if self._waiting is not None:
            self._waiting[1].close()
            os.waitpid(self._waiting[0], 0)
        self._waiting, self._wanted = None, False

    def _release(self) -> None:
        """Close the server's descriptors, in a fork."""
        for _, descriptor, _ in self._children.values():
            os.close(descriptor)
        self._connections.close()
        if self._trial_process is not None:
            os.close(self._trial_process[1])
        if self._waiting is not None:
            self._waiting[1].close()
        self._selector.close()
        self._channel.close()

    def _read(self, variables: dict[str, str]) -> WorkerEnv:
        """Return the run that the variables describe.

        A configuration that equals the first one was read and checked by the server, which saves
        that work in each fork.
        """
        env = WorkerEnv.read(os.environ | variables)
        assert env is not None
        if self._first is None:
            self._first = env
            # The worker reports a configuration that plugins refuse.
            with contextlib.suppress(DetError):
                self._checked = checked(env, self._plugins).config
                self._described = masked(self._checked)
        if self._checked is None or env.config is not self._first.config:
            return env
        return replace(env, config=self._checked, checked=True, described=self._described)

    def _reap(self, run: int) -> None:
        pid, descriptor, log_dir = self._children.pop(run)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        # Before the process is reaped, as its number may be reused afterwards.
        end_group(pid)
        _, status = os.waitpid(pid, 0)
        self._send({"ended": run, "status": os.waitstatus_to_exitcode(status)})
        self._ended += 1
        if self._ended == _MANY:
            self._shared.find_huge_pages()
        with contextlib.suppress(OSError):
            if trial_process := self._preimporter.try_imports(log_dir, self._release):
                self._trial_process = trial_process, os.pidfd_open(trial_process)
                self._selector.register(
                    self._trial_process[1], selectors.EVENT_READ, self._finish_preimport
                )

    def _finish_preimport(self) -> None:
        """Import the modules that the trial process has found safe."""
        assert self._trial_process is not None
        pid, descriptor = self._trial_process
        self._selector.unregister(descriptor)
        os.close(descriptor)
        self._trial_process = None
        self._end_waiting_fork()
        self._preimporter.import_safe_modules(well=os.waitpid(pid, 0)[1] == 0)
        self._shared.freeze()
        if self._ended >= _MANY:
            self._shared.find_huge_pages()

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")


def _run_worker(
    request: dict[str, Any],
    env: WorkerEnv,
    joined: socket.socket,
    plugins: Plugins,
    server: int,
    preimporter: Preimporter,
) -> None:
    """Turn this fork into what a new interpreter would be for the run, train, and end.

    `joined` is the run's connection.
    """
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
            # Nobody would notice its end.
            os._exit(1)
        os.environ.update(request["variables"])
        os.chdir(request["code_dir"])
        sys.path.insert(0, request["code_dir"])
        sys.argv[1:] = [request["entrypoint"]]
        # A new interpreter seeds itself, too. Otherwise forks would share unseeded numbers.
        random.seed()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()
        gc.enable()
        status = work(
            env, request["entrypoint"], Path(request["code_dir"]), plugins=plugins, joined=joined
        )
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        if not status:
            preimporter.note_imports(Path(request["log_dir"]))
        _exit(status)


def _exit(status: int) -> None:
    """End like an interpreter, without tearing down every module."""
    with contextlib.suppress(BaseException):
        # Waits for threads that are no daemons. Typeshed hides it.
        getattr(threading, "_shutdown")()  # noqa: B009
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
