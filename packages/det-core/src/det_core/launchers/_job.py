"""One launch, from the start of the hosts' processes to the exit status."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO, NoReturn

from ..backend import Ranks
from ..environ import rank_variables
from ..errors import DetError
from ._frames import Frame, Kind
from ._hosts import LOCAL, SSH, Host, address_towards, addresses, cannot_run, ranks_on
from ._link import Link
from ._output import Files, Prefixed, Tails, say
from ._ports import reserved
from .base import Launcher, Layout, Place

START_SECONDS = 600.0
_ANSWER_SECONDS = 60.0
_RECENT_SECONDS = 10.0
# What belongs to the person and the place where the launcher runs, and not to what is launched.
_STAYS = {
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "DISPLAY",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "TERM",
    "MAIL",
    "HOSTNAME",
    "_",
}
_STAYS_TOO = ("SSH_", "XDG_", "DBUS_")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to launch, and how. `environ` is the environment that the ranks share, the launcher's own.

    Ranks must meet `start_timeout` seconds after the start; where it is None, START_SECONDS after the first of them came.
    `all_gpus` lets every rank see all of its host's.
    """

    argv: Sequence[str]
    hosts: Sequence[Host]
    environ: Mapping[str, str]
    cwd: Path
    agent: str = SSH
    chief_ip: str | None = None
    port: int | None = None
    start_timeout: float | None = None
    log_dir: Path | None = None
    prefix: bool = True
    all_gpus: bool = False


@dataclass
class _Failure:
    rank: int
    status: int
    since: float


class Job:
    """The ranks of one launch; `run` starts them and returns the exit status when all have ended."""

    def __init__(self, launcher: Launcher, plan: Plan, out: BinaryIO) -> None:
        self._launcher, self._plan = launcher, plan
        self._output = Files(plan.log_dir) if plan.log_dir else Prefixed(out, prefix=plan.prefix)
        self._tails = Tails()
        self._links: list[Link] = []
        self._running: set[int] = set()
        self._waited_for: set[int] = set()
        self._deadline: float | None = None
        self._failures: list[_Failure] = []
        self._signals: list[int] = []
        self._told: list[int] = []
        self._ending = False
        self._first_exit = 0.0
        self._late = ""

    def run(self) -> int:
        """Start the ranks, pass on what they write, and return the status of the first that failed, or 0."""
        with contextlib.ExitStack() as stack:
            wake = stack.enter_context(self._signals_caught())
            selector = stack.enter_context(selectors.DefaultSelector())
            stack.callback(self._output.close)
            selector.register(wake, selectors.EVENT_READ)
            for host in self._plan.hosts:
                link = Link(host, self._plan.agent)
                stack.callback(link.close)
                self._links.append(link)
                selector.register(link, selectors.EVENT_READ, link)
                link.send({"ports": host.slots, "first_port": self._plan.port})
            layout = self._layout(self._ports(selector, wake))
            stack.enter_context(self._started(layout))
            self._watch(selector, wake)
        return self._verdict()

    # The start

    def _ports(self, selector: selectors.BaseSelector, wake: int) -> dict[Link, list[int]]:
        """Wait for every host to say which ports it keeps."""
        ports: dict[Link, list[int]] = {}
        deadline = time.monotonic() + (self._plan.start_timeout or _ANSWER_SECONDS)
        while len(ports) < len(self._links):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                missing = next(link.host.name for link in self._links if link not in ports)
                raise DetError(f"the host {missing!r} did not answer in time; see --agent, --hosts and --start-timeout")
            for key, _ in ready:
                if key.fileobj == wake:
                    raise KeyboardInterrupt
                for frame in key.data.hear():
                    ports[key.data] = json.loads(frame.body)
        return ports

    def _layout(self, ports: Mapping[Link, Sequence[int]]) -> Layout:
        hosts = self._plan.hosts
        named = addresses(hosts, self._plan.chief_ip)
        places = [
            Place(
                ranks=ranks, host=named[ranks.cross_rank], port=ports[self._links[ranks.cross_rank]][ranks.local_rank]
            )
            for ranks in ranks_on(hosts)
        ]
        patience = self._plan.start_timeout or START_SECONDS
        return Layout(places=places, here=address_towards(hosts, named), start_timeout=patience)

    @contextlib.contextmanager
    def _started(self, layout: Layout) -> Iterator[None]:
        """Tell every host what to start; the launcher's rendezvous is open meanwhile."""
        with self._launcher.meeting(layout) as variables:
            if len(variables) != layout.size:
                raise DetError(f"the launcher gave the variables of {len(variables)} ranks for {layout.size}")
            orders: list[list[dict[str, object]]] = [[] for _ in self._links]
            for place, own in zip(layout.places, variables, strict=True):
                rank = place.ranks.rank
                port = self._launcher.port(layout, rank) if layout.size > 1 else None
                env = {**rank_variables(place.ranks), "DET_CHIEF_IP": layout.places[0].host, **own}
                orders[place.ranks.cross_rank].append({"rank": rank, "port": port, "env": env})
                self._running.add(rank)
                if port is not None:
                    self._waited_for.add(rank)
            if self._plan.start_timeout is not None:
                self._deadline = time.monotonic() + self._plan.start_timeout
            for link, ranks in zip(self._links, orders, strict=True):
                link.send({**self._order(link.host), "ranks": ranks})
            yield

    def _order(self, host: Host) -> dict[str, object]:
        plan = self._plan
        shared = {name: value for name, value in plan.environ.items() if host.here or not _stays(name)}
        return {
            "argv": list(plan.argv),
            "cwd": str(plan.cwd),
            "env": shared,
            "merge": not host.here,
            "gpus": not plan.all_gpus,
        }

    # Until the end

    def _watch(self, selector: selectors.BaseSelector, wake: int) -> None:
        while not all(link.over for link in self._links):
            for key, _ in selector.select(self._pause()):
                if key.fileobj == wake:
                    os.read(wake, 1 << 10)
                    continue
                self._hear(key.data)
                if key.data.over:
                    selector.unregister(key.data)
            while self._signals:
                self._pass_on(self._signals.pop(0))
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._too_late()

    def _pause(self) -> float | None:
        quiet = self._output.show_quiet()
        late = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        return min((pause for pause in (quiet, late) if pause is not None), default=None)

    def _hear(self, link: Link) -> None:
        for frame in link.hear():
            match frame.kind:
                case Kind.OUTPUT:
                    self._output.write(frame.rank, frame.body)
                    self._tails.write(frame.rank, frame.body)
                case Kind.CAME:
                    self._no_longer_waited_for(frame.rank)
                    if self._deadline is None and self._waited_for:
                        self._deadline = time.monotonic() + START_SECONDS
                case Kind.EXITED:
                    self._exited(link, frame)

    def _exited(self, link: Link, frame: Frame) -> None:
        how = json.loads(frame.body)
        link.pids.pop(frame.rank, None)
        self._running.discard(frame.rank)
        self._no_longer_waited_for(frame.rank)
        if how["status"] == 0:
            return
        self._first_exit = self._first_exit or time.monotonic()
        since = self._tails.failing_since.get(frame.rank, 0.0)
        failing = since > self._first_exit - _RECENT_SECONDS  # an older traceback was of something that it survived
        if not how["killed"] and not self._ending:
            self._failures.append(_Failure(frame.rank, how["status"], since if failing else time.monotonic()))
        elif failing:
            self._failures.append(_Failure(frame.rank, max(1, how["status"]), since))
        self._end_all()

    def _no_longer_waited_for(self, rank: int) -> None:
        self._waited_for.discard(rank)
        if not self._waited_for:
            self._deadline = None

    def _too_late(self) -> None:
        patience = self._plan.start_timeout or START_SECONDS
        late = sorted(self._waited_for)
        self._late = f"rank {late[0]} did not come to meet the others within {patience:g} s, and all were ended"
        self._deadline = None
        self._end_all()

    def _end_all(self) -> None:
        """End the ranks of every host, once."""
        if not self._ending:
            self._ending = True
            for link in self._links:
                link.send({"end": True})

    def _pass_on(self, number: int) -> None:
        """Pass on the first signal; kill at the second."""
        name = signal.Signals(number).name
        if not self._told:
            say(f"{name} is passed on to {len(self._running)} ranks; a second one kills them")
        for link in self._links:
            link.send({"signal": int(signal.SIGKILL if self._told else number)})
        self._told.append(number)

    @contextlib.contextmanager
    def _signals_caught(self) -> Iterator[int]:
        """Give a descriptor that becomes readable at a signal, which is noted."""

        def caught(number: int, frame: FrameType | None) -> None:
            self._signals.append(number)

        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = {number: signal.signal(number, caught) for number in (signal.SIGINT, signal.SIGTERM)}
        woken = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        try:
            yield read
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(read)
            os.close(write)

    # The verdict

    def _verdict(self) -> int:
        """Say who failed first, and return the exit status."""
        if self._late:
            say(self._late)
            return 1
        if not self._failures:
            return 128 + self._told[0] if self._told and self._ending else 0
        # Nothing kills itself with SIGKILL: the others found that one gone, and may have said so before it was known.
        first = min(self._failures, key=lambda failure: (failure.status != -signal.SIGKILL, failure.since))
        status = 128 - first.status if first.status < 0 else first.status
        if not self._told or -first.status not in self._told:
            self._report(first)
        return status

    def _report(self, first: _Failure) -> None:
        how = f"was ended by {_signal(-first.status)}" if first.status < 0 else f"failed with status {first.status}"
        words = self._tails.last_words(first.rank)
        others = " first; the others were ended" if sum(host.slots for host in self._plan.hosts) > 1 else ""
        say(f"rank {first.rank} {how}{others}.{' Its last words:' if words else ''}", words)


def become(launcher: Launcher, plan: Plan) -> NoReturn:
    """Become the only rank of a world of one: the process is the command's, with nothing between."""
    with reserved(1, plan.port) as ports:
        place = Place(ranks=Ranks(), host=plan.chief_ip or LOCAL, port=ports[0])
        layout = Layout(places=[place], here=place.host, start_timeout=plan.start_timeout or START_SECONDS)
        with launcher.meeting(layout) as variables:
            environ = {**plan.environ, **rank_variables(place.ranks), "DET_CHIEF_IP": place.host, **variables[0]}
    try:
        os.execvpe(plan.argv[0], list(plan.argv), environ)
    except OSError as error:
        raise cannot_run(plan.argv[0], error) from error


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _stays(name: str) -> bool:
    return name in _STAYS or name.startswith(_STAYS_TOO)
