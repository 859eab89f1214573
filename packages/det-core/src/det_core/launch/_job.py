"""One launch, from the start of the hosts' processes to the exit status."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NoReturn

from ..backend import Ranks, rank_variables
from ..errors import DetError
from ..launcher import Launcher, Layout, Place
from ..machine import reserved
from ._frames import BEAT_SECONDS, Kind
from ._hosts import LOCAL
from ._link import Link
from ._output import Failures, Files, Prefixed, Tails, say
from ._plan import START_SECONDS, Plan, cannot_start

_ANSWER_SECONDS = 60.0
_LEAVE_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""After how long a host that says nothing is given up: twelve beats, more than a connection that comes back is away."""


class Job:
    """The ranks of one launch; `run` starts them and returns the exit status when all have ended."""

    def __init__(self, launcher: Launcher, plan: Plan, out: BinaryIO) -> None:
        self._launcher, self._plan = launcher, plan
        self._output = Files(plan.log_dir) if plan.log_dir else Prefixed(out, prefix=plan.prefix)
        self._tails = Tails()
        self._failures = Failures(self._tails)
        self._links: list[Link] = []
        self._waited_for: set[int] = set()
        self._deadline: float | None = None
        self._passed_on: list[int] = []
        self._ending = self._late = False

    def run(self) -> int:
        """Start the ranks, pass on what they write, and return the status of the first that failed, or 0."""
        with contextlib.ExitStack() as stack:
            wake = stack.enter_context(_signals_caught())
            selector = stack.enter_context(selectors.DefaultSelector())
            stack.callback(self._output.close)
            selector.register(wake, selectors.EVENT_READ)
            stack.callback(self._close)
            for n, host in enumerate(self._plan.hosts):
                link = Link(host, self._plan.agent)
                self._links.append(link)
                selector.register(link, selectors.EVENT_READ, link)
                link.send({"ports": host.slots + (n == 0), "first_port": self._plan.port})
            layout = self._plan.layout(self._ports(selector, wake))
            with self._launcher.meeting(layout) as variables:
                for link in self._links:
                    link.heard = time.monotonic()
                self._start(self._plan.orders(self._launcher, layout, variables))
                self._watch(selector, wake)
                self._close()
        return self._status()

    def _close(self) -> None:
        for link in self._links:
            link.hang_up()
        deadline = time.monotonic() + _LEAVE_SECONDS
        while self._links:
            self._links.pop().wait(deadline)

    # The start

    def _ports(self, selector: selectors.BaseSelector, wake: int) -> list[Sequence[int]]:
        """Wait for every host to say which ports it keeps."""
        ports: dict[Link, Sequence[int]] = {}
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
        return [ports[link] for link in self._links]

    def _start(self, orders: Sequence[dict[str, Any]]) -> None:
        for link, order in zip(self._links, orders, strict=True):
            link.send(order)
            self._waited_for |= {rank["rank"] for rank in order["ranks"] if rank["port"] is not None}
        if self._plan.start_timeout is not None and self._waited_for:
            self._deadline = time.monotonic() + self._plan.start_timeout

    # Until the end

    def _watch(self, selector: selectors.BaseSelector, wake: int) -> None:
        while not all(link.over for link in self._links):
            for key, _ in selector.select(self._pause()):
                if key.fileobj == wake:
                    for number in os.read(wake, 1 << 10):
                        self._pass_on(number)
                    continue
                self._hear(key.data)
                if key.data.over:
                    selector.unregister(key.data)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._too_late()
            for link in self._links:
                silent = not link.over and time.monotonic() - link.heard > SILENCE_SECONDS
                # Where this process was held up itself, something waits to be heard.
                if silent and not select.select([link], [], [], 0)[0]:
                    raise DetError(
                        f"the host {link.host.name!r} has said nothing for {SILENCE_SECONDS:g} s; it is frozen or cannot be "
                        "reached, and all ranks are ended"
                    )

    def _pause(self) -> float:
        quiet = self._output.show_quiet()
        late = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        return min(pause for pause in (quiet, late, BEAT_SECONDS) if pause is not None)

    def _hear(self, link: Link) -> None:
        for frame in link.hear():
            match frame.kind:
                case Kind.OUTPUT:
                    self._output.write(frame.rank, frame.body)
                    self._tails.write(frame.rank, frame.body)
                case Kind.CAME:
                    if self._deadline is None:
                        self._deadline = time.monotonic() + START_SECONDS
                    self._no_longer_waited_for(frame.rank)
                case Kind.EXITED:
                    self._no_longer_waited_for(frame.rank)
                    how = json.loads(frame.body)
                    if how["status"]:
                        self._failures.add(frame.rank, how["status"], was_ended=how["killed"] or self._ending)
                        self._end_all()

    def _no_longer_waited_for(self, rank: int) -> None:
        self._waited_for.discard(rank)
        if not self._waited_for:
            self._deadline = None

    def _too_late(self) -> None:
        late, patience = min(self._waited_for), self._plan.patience
        say(f"rank {late} did not come to meet the others within {patience:g} s; all are ended")
        self._deadline, self._late = None, True
        self._end_all()

    def _end_all(self) -> None:
        """End the ranks of every host, once."""
        if not self._ending:
            self._ending = True
            for link in self._links:
                link.send({"end": True})

    def _pass_on(self, number: int) -> None:
        """Pass on the first signal; kill at the second."""
        if not self._passed_on:
            say(f"{signal.Signals(number).name} is passed on to the ranks; a second one kills them")
        for link in self._links:
            link.send({"signal": int(signal.SIGKILL if self._passed_on else number)})
        self._passed_on.append(number)

    def _status(self) -> int:
        if self._late:
            return 1
        if self._failures:
            return self._failures.report(size=self._plan.size, passed_on=self._passed_on)
        return 128 + self._passed_on[0] if self._passed_on and self._ending else 0


@contextlib.contextmanager
def _signals_caught() -> Iterator[int]:
    """Give a descriptor from which the numbers of signals are read that ask for the end."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    woken = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


def become(launcher: Launcher, plan: Plan) -> NoReturn:
    """Become the only rank of a world of one: the process is the command's, with nothing between."""
    with reserved(1, plan.port) as ports:
        place = Place(ranks=Ranks(), host=plan.chief_ip or LOCAL, port=ports[0])
        layout = Layout(places=[place], here=place.host, start_timeout=plan.patience)
        with launcher.meeting(layout) as variables:
            environ = {**plan.environ, **rank_variables(place.ranks), "DET_CHIEF_IP": place.host, **variables[0]}
    try:
        os.execvpe(plan.argv[0], list(plan.argv), environ)
    except OSError as error:
        raise cannot_start(plan.argv, plan.cwd, error) from error
