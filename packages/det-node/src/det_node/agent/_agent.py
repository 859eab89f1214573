"""The agent process of one experiment on one node: `python -P -m det_node.agent FILE`."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import queue
import secrets
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import msgspec

import det_core
import det_node
from det_core.errors import DetError
from det_core.ranks.network import interface_towards
from det_core.support.paths import read_regular
from det_core.support.threads import start_thread
from det_core.train.failure import summary

from .. import wire
from ..machine import address_for, gpus, reserved
from ..process import adopt_orphans, kill_below
from ..protocol import welcome
from ._files import OwnFiles
from ._frames import (
    AgentEnded,
    AgentError,
    AgentEvent,
    AgentHello,
    AgentStart,
    Attach,
    CodeTar,
    Ended,
    EndRuns,
    Heartbeat,
    LogChunk,
    MessageAck,
    NodeLeaving,
    OpenTerminal,
    Order,
    PortsReserved,
    PreemptRun,
    ReservePorts,
    RunAck,
    RunConnected,
    RunSpec,
    SignalRun,
    StartRun,
    TerminalData,
    WorkerReply,
    decode_attach,
    decode_orders,
    decode_start,
    encode_frame,
)
from ._note import NOTE, end, find, find_driver, name_driver, note_agent
from ._outbox import Outbox
from ._processes import Processes
from ._relay import Relay
from ._terminals import Terminals

_ATTACH_SECONDS = 30.0
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.1
_LOGS_SECONDS, _MEDIA_SECONDS = 0.25, 2.0
# Fractions of a fenced lease: when runs are asked to save, and when the agent ends.
_SAVES, _STAYS = 0.5, 2.0


class Agent:
    """Starts and signals runs as its driver orders, and keeps their messages for it.

    The agent connects to its driver, and to the next driver when that one is gone. It releases its
    runs when a driver orders it, or when it has had no driver for the time of the lease. It ends
    when its runs have ended.
    """

    def __init__(self, start: AgentStart) -> None:
        self._start = start
        self._incarnation = secrets.token_hex(8)
        self._lock = threading.RLock()
        # `_killed` holds the runs that were killed because the lease had ended.
        self._runs, self._killed = dict[int, RunSpec](), set[int]()
        # Why runs could not begin, as no thread could be started for their workers.
        self._unserved = dict[int, str]()
        self._ends: dict[int, Ended] = {}
        self._driver: Outbox | None = None
        self._last_received, self._lease, self._fenced = time.monotonic(), _ATTACH_SECONDS, False
        self._ending = self._leaving = self._saving = False
        self._wake = threading.Event()
        self._dialing: threading.Thread | None = None
        # Whether any driver ever attached, and the problems to report to the next driver.
        self._attached, self._unreported = False, list[str]()
        self._reported = set[str]()
        self._fatal: BaseException | None = None
        self._terminations: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._next_heartbeat = self._next_logs = self._next_media = 0.0
        key = bytes.fromhex(start.key)
        # All ranks of a run have the same key, on whichever node they are.
        self._relay = Relay(
            start.host,
            key=hmac.digest(key, b"workers", "sha256"),
            failed=self._report_error,
            unserved=self._end_unserved,
        )
        self._processes = Processes(
            self._relay, self._handle_end, self._count_unconnected, self._send_output, self._fail
        )
        self._terminals = Terminals(self._send)
        self._ports = contextlib.ExitStack()
        self._files: OwnFiles | None = None
        self._note: Path | None = None
        if start.directory is not None:
            directory = start.directory.expanduser()
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files = (
                None if start.shared else OwnFiles(directory / f"{start.name}-{start.node}")
            )
            self._note = directory / (NOTE if start.shared else f"{start.name}-{start.node}.json")
            note_agent(self._note, start.name)

    def serve(self) -> None:
        """Serve until all runs have ended. No process that the agent started is left then."""
        try:
            dial = self._serve_stdio if self._start.stdio else self._connect_to_driver
            self._dialing = start_thread(dial, name="det-agent-driver", failed=self._fail)
            start_thread(self._handle_terminations, name="det-agent-end", failed=self._fail)
            while not self._ending or self._running():
                self._wake.wait(_POLL_SECONDS)
                self._wake.clear()
                if self._fatal is not None:
                    raise self._fatal
                self._check_lease(time.monotonic())
            self._send_files(list(self._runs))
        except BaseException as error:
            self._report_error(error)
            raise
        finally:
            self._clean_up()

    def _clean_up(self) -> None:
        """End all processes below the agent and remove its files, also after a failure."""
        self._processes.finish_output()
        if self._start.stdio:
            self._send(AgentEnded())
        if self._driver is not None:
            self._driver.close(_CONNECT_SECONDS)
        if self._start.stdio and self._dialing is not None:
            # It may still write what was sent.
            self._dialing.join(_CONNECT_SECONDS)
        # The note may be that of the next agent.
        if self._note and (found := find(self._note)) and found["pid"] == os.getpid():
            self._note.unlink()
            find_driver(self._note).unlink(missing_ok=True)
        self._processes.close()
        kill_below(os.getpid())
        if self._files:
            self._files.close()

    def _check_lease(self, now: float) -> None:
        # Without fencing no other node can take over these runs, so a connected driver may be
        # silent.
        silent = now - self._last_received if self._fenced or self._driver is None else 0.0
        if self._fenced:
            if now >= self._next_heartbeat:
                self._next_heartbeat = now + self._lease / 8
                self._send(Heartbeat())
            self._fence(silent)
        elif silent > self._lease and not self._ending:
            self._end_runs()
        if now >= self._next_logs:
            self._next_logs = now + _LOGS_SECONDS
            # A trial may have thousands of them, which are looked through each time.
            media = now >= self._next_media
            self._next_media = now + _MEDIA_SECONDS if media else self._next_media
            if self._driver is not None and (files := self._files):
                self._terminals.announce(self._running(), files)
            self._send_files(list(self._runs), media=media)

    def _fence(self, silent: float) -> None:
        """Make the runs save before a fenced lease ends, and kill them when it has ended.

        The agent then stays for a while, so that a driver that comes soon after still gets the
        messages of the runs.
        """
        runs = self._running()
        if silent > self._lease:
            self._killed.update(runs)
            for run in runs:
                self._processes.signal(run, signal.SIGKILL)
        elif silent > self._lease * _SAVES and not self._saving:
            self._saving = True
            for run in runs:
                self._preempt(run, "its driver has not been heard of")
        if not runs and (self._leaving or silent > self._lease * _STAYS) and not self._ending:
            self._end_runs()

    def terminate(self, number: int) -> None:
        """Queue a SIGTERM for the thread that handles it.

        The signal handler calls this, as it must not block.
        """
        self._terminations.put(number)

    def _handle_terminations(self) -> None:
        while True:
            self._terminations.get()
            self._handle_termination()

    def _handle_termination(self) -> None:
        """Make the runs save and end after SIGTERM, which all processes of a job get."""
        self._leaving = True
        self._send(NodeLeaving("its machine is needed"))
        for run in self._running():
            self._preempt(run, "the machine is needed")
        if not self._fenced:
            self._lease = 0.0

    # The driver

    def _connect_to_driver(self) -> None:
        """Connect to the driver, and connect again whenever the connection is lost."""
        key = bytes.fromhex(self._start.key)
        while not self._ending:
            try:
                with wire.connect(
                    self._driver_address(), key, timeout=_CONNECT_SECONDS
                ) as connection:
                    self._serve_driver(connection)
            except (ConnectionError, TimeoutError, wire.KeyRefused):
                # The driver is not there yet, or is gone.
                pass
            except Exception as error:
                self._report_error(error)
                # No driver could ever learn of it.
                if self._driver is None and not self._attached:
                    raise
            time.sleep(_POLL_SECONDS)

    def _serve_stdio(self) -> None:
        """Obey the only driver, and end with it."""
        with suppress(ConnectionError, TimeoutError), wire.stdio() as connection:
            self._serve_driver(connection)
        for run in self._running():
            self._processes.signal(run, signal.SIGKILL)
        self._end_runs()

    def _driver_address(self) -> wire.Address:
        """Return where the driver listens."""
        for file in (self._start.driver_file, self._note and find_driver(self._note)):
            # The file may be half written.
            with suppress(OSError, ValueError, TypeError):
                if file is not None:
                    host, port = json.loads(read_regular(file))
                    return host, port
        if self._start.driver is None:
            raise ConnectionError("nobody has said yet where the driver is")
        return self._start.driver

    def _serve_driver(self, connection: wire.Connection) -> None:
        """Obey the orders of one driver until its connection is lost."""
        with self._lock:
            hello = self._hello()
        connection.send(encode_frame(hello))
        attach = decode_attach(connection.recv(timeout=_ATTACH_SECONDS))
        if attach.protocol != hello.protocol:
            return
        driver = Outbox(connection)
        try:
            self._relay.subscribe(driver.send, lambda: self._attach_driver(attach, driver))
            with self._lock:
                for ended in self._ends.values():
                    driver.send(ended)
            while True:
                for order in decode_orders(connection.recv()):
                    self._last_received, self._saving = time.monotonic(), False
                    self._handle(order)
        finally:
            self._relay.unsubscribe(driver.send)
            with self._lock:
                if self._driver is driver:
                    self._driver = None
                    self._last_received = self._last_received if self._fenced else time.monotonic()
            self._terminals.close()
            driver.close()

    def _attach_driver(self, attach: Attach, driver: Outbox) -> None:
        """Adopt the settings of a driver that has attached, and send it what it lacks."""
        with self._lock:
            if attach.environ is not None:
                self._processes.environ = attach.environ
            self._lease, self._fenced = attach.lease, attach.fenced
            self._relay.orphan_seconds = attach.lease if attach.fenced else None
            self._driver, self._last_received, self._attached = driver, time.monotonic(), True
            unreported, self._unreported = self._unreported, []
            for reason in unreported:
                driver.send(AgentError(reason))
            if self._files:
                self._files.set_sent(attach.logs)
                self._send_files(list(self._runs))

    def _hello(self) -> AgentHello:
        ours, machine, known = welcome(), os.uname().nodename, gpus(os.environ)
        slots = int(os.environ.get("DET_SLOTS_TOTAL") or len(os.sched_getaffinity(0)))
        return AgentHello(
            protocol=ours.protocol,
            version=ours.version,
            name=self._start.name,
            node=self._start.node,
            incarnation=self._incarnation,
            pid=os.getpid(),
            machine=machine,
            address=(address_for(self._driver_address()[0]) if not self._start.shared else None)
            or "127.0.0.1",
            devices=tuple(f"cuda:{gpu}" for gpu in known)
            or tuple(f"cpu:{k}" for k in range(slots)),
            gpus=known,
            cores=len(os.sched_getaffinity(0)),
            codes=self._files.codes if self._files else (),
            runs=tuple(self._runs.values()),
        )

    def _handle(self, order: Order) -> None:
        match order:
            case CodeTar(digest, packed) if self._files:
                self._files.add_code(digest, packed)
            # A run that is known already was sent twice, as a connection was lost.
            case StartRun(spec) if spec.run_id not in self._runs:
                with self._lock:
                    self._runs[spec.run_id] = spec
                if self._files:
                    self._processes.start(spec, self._files.with_own_directories)
                else:
                    self._processes.start(spec)
            case SignalRun(run, number):
                self._processes.signal(run, signal.Signals(number))
            case PreemptRun(run, reason):
                self._preempt(run, reason)
            case WorkerReply(link, reply):
                self._relay.reply(link, reply)
            case MessageAck(link, number):
                self._relay.acknowledge(link, number)
            case RunAck(run):
                with self._lock:
                    self._runs.pop(run, None)
                    self._ends.pop(run, None)
                self._relay.release(run)
            case ReservePorts(count, first, towards):
                self._reserve(count, first, towards)
            case OpenTerminal() | TerminalData():
                self._terminals.handle(order, self._files)
            case EndRuns():
                self._end_runs()

    def _reserve(self, count: int, first: int | None, towards: str | None) -> None:
        interface = interface_towards(towards) if towards else None
        try:
            ports = self._ports.enter_context(reserved(count, first))
            self._send(PortsReserved(tuple(ports), interface))
        except DetError as error:
            self._send(PortsReserved(refused=str(error)))

    def _send_output(self, event: LogChunk | RunConnected) -> None:
        """Send what a foreground run wrote, as fast as the driver reads."""
        if (driver := self._driver) is not None:
            driver.send(event)
            driver.wait_for_room()

    def _send(self, event: AgentEvent) -> None:
        if (driver := self._driver) is not None:
            driver.send(event)

    def _report_error(self, error: BaseException) -> None:
        """Report an error and its place in det's code to the driver, once.

        Without a driver, the error is kept for the next one.
        """
        ours = tuple(str(Path(str(package.__file__)).parent) for package in (det_core, det_node))
        where = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename.startswith(ours)
        ][-1:]
        reason = summary(error) + "".join(
            f" ({Path(frame.filename).name}:{frame.lineno})" for frame in where
        )
        with self._lock:
            if reason in self._reported:
                return
            self._reported.add(reason)
            sys.stderr.write(f"det: {reason}\n")
            if self._driver is None:
                self._unreported.append(reason)
            else:
                self._driver.send(AgentError(reason))

    def _fail(self, error: BaseException) -> None:
        """Make `serve` raise the error of a thread that the agent cannot do without."""
        self._fatal = error
        self._wake.set()

    # Runs

    def _preempt(self, run: int, reason: str) -> None:
        if (
            not self._relay.preempt(run, reason)
            and run in self._runs
            and not self._runs[run].trial_class
        ):
            # A script that does not use the Core API, or has not connected yet.
            self._processes.signal(run, signal.SIGTERM)

    def _end_runs(self) -> None:
        """Make the runs save and end without this agent.

        A driver that connects now comes too late.
        """
        self._ending = True
        self._relay.close()
        self._processes.end_runs()
        self._wake.set()

    def _end_unserved(self, run: int, error: OSError) -> None:
        """Kill a run that cannot begin, as no thread can be started for one of its workers.

        It has not failed: the driver starts another run later. A script that has a connection may
        have trained already, and goes on.
        """
        with self._lock:
            spec = self._runs.get(run)
            if spec is None or (not spec.trial_class and self._relay.has_connected(run)):
                return
            self._unserved[run] = f"{error.strerror or error} on {os.uname().nodename}"
        self._processes.signal(run, signal.SIGKILL)

    def _handle_end(self, ended: Ended) -> None:
        self._relay.drain(ended.run)
        self._terminals.finish(ended.run)
        self._send_files([ended.run])
        with self._lock:
            # A run that ended well did without that connection.
            why = self._unserved.pop(ended.run, "") if ended.status else ""
            self._ends[ended.run] = ended = msgspec.structs.replace(
                ended, fenced=ended.run in self._killed, unstarted=ended.unstarted or why
            )
            self._send(ended)
        self._wake.set()

    def _send_files(self, runs: list[int], *, media: bool = True) -> None:
        with self._lock:
            if self._files and self._driver is not None:
                try:
                    self._files.send_logs(runs, self._send)
                    if media:
                        self._files.send_media(runs, self._send)
                except OSError as error:
                    # The run continues without its log and its media.
                    self._report_error(error)

    def _running(self) -> list[int]:
        with self._lock:
            return [run for run in self._runs if run not in self._ends]

    def _count_unconnected(self) -> int:
        """Return how many workers have yet to connect."""
        with self._lock:
            runs = [self._runs[run] for run in self._running()]
        return sum(len(spec.ranks) for spec in runs if not self._relay.has_connected(spec.run_id))


def main(argv: list[str]) -> int:
    """Run the agent that the first argument describes: a file, or `-` for standard input.

    `- N` overrides the node's number in the allocation, as all nodes may get the same description.
    `--find NOTE` looks for the agent that wrote this note. `--find NOTE HOST PORT` also tells it
    the address of its driver. `--end NOTE` asks the agent to end, and `--kill NOTE` kills it.
    """
    if argv[0].startswith("--"):
        note = Path(argv[1]).expanduser()
        if argv[0] != "--find":
            end(note, at_once=argv[0] == "--kill")
        elif len(argv) == 4 and find(note):
            name_driver(note, argv[2], int(argv[3]))
        sys.stdout.write("there\n" if find(note) else "gone\n")
        return 0
    start = decode_start(
        sys.stdin.buffer.readline() if argv[0] == "-" else Path(argv[0]).read_bytes()
    )
    start = msgspec.structs.replace(start, node=int(argv[1])) if len(argv) == 2 else start
    adopt_orphans()
    # SIGINT is for the driver. Workers would inherit SIG_IGN, so the handler does nothing instead.
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        agent = Agent(start)
    except (OSError, MemoryError) as error:
        sys.stderr.write(f"det: the agent on {os.uname().nodename} cannot begin: {error}\n")
        return 1
    signal.signal(signal.SIGTERM, lambda number, _: agent.terminate(number))
    agent.serve()
    return 0
