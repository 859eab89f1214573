"""The process that has the runs of one experiment on one machine: `python -P -m det_core.agent FILE`."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from .. import wire
from ..machine import address_for, gpus
from ..process import adopt_orphans, kill_below
from ..protocol import welcome
from ._files import OwnFiles
from ._frames import (
    AgentStart,
    Answered,
    Attach,
    Beat,
    CodeTar,
    Ended,
    Here,
    Leaves,
    LetGo,
    Order,
    PreemptRun,
    RunSpec,
    Settled,
    SignalRun,
    StartRun,
    Taken,
    Told,
    decode_attach,
    decode_orders,
    decode_start,
    encode_frame,
)
from ._note import NOTE, end, find, note_agent
from ._outbox import Outbox
from ._processes import Processes
from ._relay import Relay

_ATTACH_SECONDS = 30.0
_DIAL_SECONDS = 5.0
_POLL_SECONDS = 0.1
_LOGS_SECONDS = 0.25
_SAVES, _STAYS = 0.5, 2.0  # of a lease that is fenced: when runs save, and when the agent ends


class Agent:
    """Starts and signals runs as its driver says, and keeps for it what is heard of them.

    It connects to its driver, and to the next one where that is gone. When a driver says so, or when none has been heard of
    for the time of the lease, it lets its runs go, and ends when they have ended.
    """

    def __init__(self, start: AgentStart) -> None:
        self._start = start
        self._incarnation = secrets.token_hex(8)
        self._lock = threading.RLock()
        self._runs, self._killed = dict[int, RunSpec](), set[int]()  # killed as the lease had ended
        self._ends: dict[int, Ended] = {}
        self._driver: Outbox | None = None
        self._heard, self._lease, self._fenced = time.monotonic(), _ATTACH_SECONDS, False
        self._letting_go = self._leaving = self._saving = False
        self._news = threading.Event()
        self._next_beat = self._next_logs = 0.0
        key = bytes.fromhex(start.key)
        # The ranks of a run, wherever they are, have one key.
        self._relay = Relay(start.host, key=hmac.digest(key, b"workers", "sha256"))
        self._processes = Processes(self._relay, self._ended, self._coming)
        directory = start.directory.expanduser()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._files = None if start.shared else OwnFiles(directory / f"{start.name}-{start.node}")
        self._note = directory / (NOTE if start.shared else f"{start.name}-{start.node}.json")
        note_agent(self._note, start.name)

    def serve(self) -> None:
        """Serve until it is over; nothing that was started is left then."""
        threading.Thread(target=self._dial, daemon=True, name="det-agent-driver").start()
        while not self._letting_go or self._unended():
            self._news.wait(_POLL_SECONDS)
            self._news.clear()
            self._keep_time(time.monotonic())
        self._tell_logs(list(self._runs))
        if self._driver is not None:
            self._driver.close(_DIAL_SECONDS)
        if (found := find(self._note)) and found["pid"] == os.getpid():  # and not that of the next one
            self._note.unlink()
        self._processes.close()
        kill_below(os.getpid())
        if self._files:
            self._files.close()

    def _keep_time(self, now: float) -> None:
        # Where nobody else can take these runs, a driver that is there and says nothing is waited for.
        silent = now - self._heard if self._fenced or self._driver is None else 0.0
        if self._fenced:
            if now >= self._next_beat:
                self._next_beat = now + self._lease / 8
                self._tell(Beat())
            self._fence(silent)
        elif silent > self._lease and not self._letting_go:
            self._let_go()
        if now >= self._next_logs:
            self._next_logs = now + _LOGS_SECONDS
            self._tell_logs(list(self._runs))

    def _fence(self, silent: float) -> None:
        """Have no run left when the lease has ended; what was saved is told to a driver that comes soon after."""
        runs = self._unended()
        if silent > self._lease:
            self._killed.update(runs)
            for run in runs:
                self._processes.signal(run, signal.SIGKILL)
        elif silent > self._lease * _SAVES and not self._saving:
            self._saving = True
            for run in runs:
                self._preempt(run, "its driver has not been heard of")
        if not runs and (self._leaving or silent > self._lease * _STAYS) and not self._letting_go:
            self._let_go()

    def terminated(self) -> None:
        """SIGTERM, as all processes of a job get it: the runs save and end, whatever becomes of the driver."""
        self._leaving = True
        self._tell(Leaves("its machine is needed"))
        for run in self._unended():
            self._preempt(run, "the machine is needed")
        if not self._fenced:
            self._lease = 0.0

    # The driver

    def _dial(self) -> None:
        """Connect to the driver, and again whenever the connection is lost."""
        key = bytes.fromhex(self._start.key)
        while not self._letting_go:
            with suppress(OSError, ValueError), wire.connect(self._where(), key, timeout=_DIAL_SECONDS) as connection:
                self._attend(connection)
            time.sleep(_POLL_SECONDS)

    def _where(self) -> wire.Address:
        """Return where the driver listens."""
        if self._start.driver_file is not None:
            with suppress(OSError):
                host, port = json.loads(self._start.driver_file.read_text())
                return host, port
        if self._start.driver is None:
            raise ConnectionError("nobody has said yet where the driver is")
        return self._start.driver

    def _attend(self, connection: wire.Connection) -> None:
        """Take the orders of one driver for as long as it is there."""
        with self._lock:
            here = self._here()
        connection.send(encode_frame(here))
        attach = decode_attach(connection.recv(timeout=_ATTACH_SECONDS))
        if attach.protocol != here.protocol:
            return
        driver = Outbox(connection)
        try:
            self._relay.heard_by(driver.tell, lambda: self._take_up(attach, driver))
            with self._lock:
                for ended in self._ends.values():
                    driver.tell(ended)
            while True:
                for order in decode_orders(connection.recv()):
                    self._heard, self._saving = time.monotonic(), False
                    self._obey(order)
        finally:
            self._relay.unheard_by(driver.tell)
            with self._lock:
                if self._driver is driver:
                    self._driver = None
                    self._heard = self._heard if self._fenced else time.monotonic()
            driver.close()

    def _take_up(self, attach: Attach, driver: Outbox) -> None:
        """Go on as this driver says, and say what of runs that have ended it does not know."""
        with self._lock:
            if attach.environ is not None:
                self._processes.environ = attach.environ
            self._lease, self._fenced = attach.lease, attach.fenced
            self._relay.alone = attach.lease if attach.fenced else None
            self._driver, self._heard = driver, time.monotonic()
            if self._files:
                self._files.has_told(attach.logs)
                self._tell_logs(list(self._runs))

    def _here(self) -> Here:
        ours, machine, known = welcome(), os.uname().nodename, gpus(os.environ)
        slots = int(os.environ.get("DET_SLOTS_TOTAL") or len(os.sched_getaffinity(0)))
        return Here(
            protocol=ours.protocol,
            version=ours.version,
            name=self._start.name,
            node=self._start.node,
            incarnation=self._incarnation,
            pid=os.getpid(),
            machine=machine,
            address=(address_for(self._where()[0]) if not self._start.shared else None) or "127.0.0.1",
            devices=tuple(f"cuda:{gpu}" for gpu in known) or tuple(f"cpu:{k}" for k in range(slots)),
            gpus=known,
            codes=self._files.codes if self._files else (),
            runs=tuple(self._runs.values()),
        )

    def _obey(self, order: Order) -> None:
        match order:
            case CodeTar(digest, packed) if self._files:
                self._files.keep(digest, packed)
            case StartRun(spec) if spec.run_id not in self._runs:  # else it was said twice, as a connection was lost
                with self._lock:
                    self._runs[spec.run_id] = spec
                self._processes.start(self._files.moved(spec) if self._files else spec)
            case SignalRun(run, number):
                self._processes.signal(run, signal.Signals(number))
            case PreemptRun(run, reason):
                self._preempt(run, reason)
            case Answered(link, answer):
                self._relay.answer(link, answer)
            case Taken(link, number):
                self._relay.taken(link, number)
            case Settled(run):
                with self._lock:
                    self._runs.pop(run, None)
                    self._ends.pop(run, None)
                self._relay.forget(run)
            case LetGo():
                self._let_go()

    def _tell(self, told: Told) -> None:
        if (driver := self._driver) is not None:
            driver.tell(told)

    # Runs

    def _preempt(self, run: int, reason: str) -> None:
        if not self._relay.preempt(run, reason) and run in self._runs and not self._runs[run].trial_class:
            self._processes.signal(run, signal.SIGTERM)  # a script that does not use the Core API, or not yet

    def _let_go(self) -> None:
        """Have the runs save and end by themselves; who comes now comes too late."""
        self._letting_go = True
        self._relay.close()
        self._processes.let_go()
        self._news.set()

    def _ended(self, ended: Ended) -> None:
        self._relay.drain(ended.run)
        self._tell_logs([ended.run])
        with self._lock:
            self._ends[ended.run] = ended = msgspec.structs.replace(ended, fenced=ended.run in self._killed)
            self._tell(ended)
        self._news.set()

    def _tell_logs(self, runs: list[int]) -> None:
        with self._lock:
            if self._files and self._driver is not None:
                self._files.tell(runs, self._tell)

    def _unended(self) -> list[int]:
        with self._lock:
            return [run for run in self._runs if run not in self._ends]

    def _coming(self) -> int:
        """Return how many workers are to connect."""
        with self._lock:
            runs = [self._runs[run] for run in self._unended()]
        return sum(len(spec.ranks) for spec in runs if not self._relay.came(spec.run_id))


def main(argv: list[str]) -> int:
    """Be the agent that the first argument describes: a file, or `-` for the standard input.

    `- N` makes it that of the claim's machine N, as all of them may be told the same. Or, with `--find NOTE`, `--end NOTE` or
    `--kill NOTE`, look for one that has noted itself there, and end it.
    """
    if argv[0].startswith("--"):
        note = Path(argv[1]).expanduser()
        if argv[0] != "--find":
            end(note, at_once=argv[0] == "--kill")
        sys.stdout.write("there\n" if find(note) else "gone\n")
        return 0
    start = decode_start(sys.stdin.buffer.readline() if argv[0] == "-" else Path(argv[0]).read_bytes())
    start = msgspec.structs.replace(start, node=int(argv[1])) if len(argv) == 2 else start
    adopt_orphans()
    signal.signal(signal.SIGINT, lambda *_: None)  # the driver's; to ignore it would be handed on to workers
    agent = Agent(start)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=agent.terminated, daemon=True).start())
    agent.serve()
    return 0
