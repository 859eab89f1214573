"""The endpoint that takes up what scripts record on other machines without det run."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from det_core.errors import DetError, ExperimentBusy, StoreUnwritable
from det_core.support.threads import start_thread
from det_driver.recording import Accepted, Owner, Receiver, Taking
from det_driver.store import ExperimentRow
from det_web.endpoints import NO_STORE, failed
from det_web.openapi import takes

_LOOK_SECONDS = 1.0
_taking = msgspec.json.Decoder(Taking).decode


class _User(Owner):
    """The user of a request, with what the sign-in says of them."""

    def __init__(self, request: Request) -> None:
        self.name = request.state.user.name
        self._state = request.state

    def whose(self, found: ExperimentRow) -> str | None:
        owner: str | None = self._state.find_owner(found.id, found.created)
        return owner

    def check_quota(self) -> None:
        self._state.check_quota()

    def made(self, id: int) -> None:
        self._state.note_owner(id)


class Recordings:
    """Takes up the recordings of all users, in one thread, which holds their experiments."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._asked: queue.SimpleQueue[tuple[Callable[[Receiver], Accepted], Future[Accepted]]] = (
            queue.SimpleQueue()
        )
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @takes(body=Taking, response=Accepted)
    async def take(self, request: Request) -> Response:
        """Take up what a script has recorded on another machine."""
        given, owner = _taking(await request.body()), _User(request)
        reply: Future[Accepted] = Future()
        self._start()
        self._asked.put((lambda receiver: receiver.take(given, owner), reply))
        try:
            accepted = await asyncio.wrap_future(reply)
        except StoreUnwritable as error:
            return failed(507, str(error))
        except ExperimentBusy as error:
            return failed(503, str(error))
        return Response(msgspec.json.encode(accepted), 200, NO_STORE, "application/json")

    def _start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = start_thread(self._work, name="det-server-recordings")

    def _work(self) -> None:
        receiver = Receiver(self._home)
        while True:
            with suppress(queue.Empty):
                take, reply = self._asked.get(timeout=_LOOK_SECONDS)
                if reply.set_running_or_notify_cancel():
                    try:
                        reply.set_result(take(receiver))
                    except Exception as error:
                        reply.set_exception(error)
            with suppress(DetError):
                receiver.release()
