"""Endpoints: address, parameters and reply. The router and the OpenAPI document use them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from det_core.errors import ConfigError, DetError, StoreError
from det_driver.accounts import runs_as_users
from det_driver.client import Client, Experiment, Trial
from det_driver.store import Store, Visible

from .boards import Boards
from .lists import Lists
from .shapes import Made

ROOT = "/api/v1"
NO_STORE = {"cache-control": "no-store"}
STARTS = 8
"""The most drivers that one endpoint starts at once.

Such requests wait for the drivers. So they have their own threads, and no other request waits for a
thread. With 16 at once on two cores, 200 drivers started a quarter sooner, and the page waited up
to twice as long for a processor.
"""


class _Number(Convertor[int]):
    """A number in an address. Python refuses to read one of thousands of digits."""

    regex = "[0-9]{1,30}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


class Refused(Exception):
    """A reply that is an error: a status and one sentence."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


Owners = Callable[[], Mapping[tuple[int, float], str]]
"""Returns the owners of experiments, by number and time of creation."""


def no_owners() -> Mapping[tuple[int, float], str]:
    """Return no owner, as a server without users does."""
    return {}


class Problem(msgspec.Struct):
    """The body of a reply that is an error."""

    error: str


@dataclass(frozen=True)
class ApiRequest:
    """One request: the home, the numbers in its address, and its query and body, decoded.

    `visible` are the experiments that exist for its user, by default all.
    """

    home: Path
    client: Client
    lists: Lists
    boards: Boards
    path: Mapping[str, Any]
    query: Any
    body: Any
    owners: Owners
    user: Any
    """Who sent it, with a name and a role. None where the server has no users."""
    visible: Visible | None = None
    preferences: Callable[[], Mapping[str, str]] = dict
    """Returns the user's values for keys that a configuration does not have."""

    @property
    def id(self) -> int:
        """The number in the address."""
        if (id := int(self.path["id"])) >= 10**18:
            raise Refused(404, "no experiment or trial has a number of so many digits")
        return id

    def store(self) -> Store:
        """Open the store for reading."""
        return Store.reader(self.home, self.visible)

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment of that number.

        The reply is 404 where it does not exist, 409 where it cannot be read.
        """
        found: Experiment = self._found(
            self.client.get_experiment, self.home / "experiments" / str(self.id)
        )
        return found

    @cached_property
    def trial(self) -> Trial:
        """The trial of that number. The reply is 404 where it does not exist."""
        found: Trial = self._found(self.client.get_trial, None)
        return found

    def _found(self, get: Callable[[int], Any], place: Path | None) -> Any:
        try:
            return get(self.id)
        except StoreError as error:
            raise Refused(
                409 if place is not None and place.is_dir() else 404, str(error)
            ) from error


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One method of one address below /api/v1.

    `response` is the type of the reply: a struct, or media types separated by commas. `starts`:
    whether it starts a driver.
    """

    method: str
    path: str
    does: Callable[[ApiRequest], Any]
    response: type | str
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    status: int = 200
    starts: bool = False

    @property
    def full_path(self) -> str:
        """The path of its route."""
        return ROOT + self.path.replace("{id}", "{id:number}").replace("{path}", "{path:path}")

    @property
    def says(self) -> str:
        """What it does, in a sentence."""
        return (self.does.__doc__ or "").strip().splitlines()[0]

    def route(
        self,
        home: Path,
        lists: Lists,
        boards: Boards,
        on_made: Callable[[Request, int], None] | None = None,
        owners: Owners = no_owners,
    ) -> Route:
        """Return the route that handles it, for one home.

        `on_made` is called with the number of an experiment that a request has created.
        """
        everything = Client(home)
        locks = _Locks()
        query = msgspec.json.Decoder(self.query, strict=False) if self.query else None
        given = msgspec.json.Decoder(self.body) if self.body else None
        limiter = CapacityLimiter(STARTS) if self.starts else None

        async def respond(request: Request) -> Response:
            body = await request.body()
            try:
                asks = query and query.decode(msgspec.json.encode(dict(request.query_params)))
                gives = given and given.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                return failed(400, str(error))
            visible = await run_in_threadpool(visible_to, request)
            user = getattr(request.state, "user", None)
            preferences = getattr(request.state, "read_preferences", dict)
            # What it makes has an owner from the beginning, as that decides what may run.
            makes = self.method != "GET" and runs_as_users(home)
            owner = str(user.name) if makes and user is not None else ""
            client = (
                everything
                if visible is None and not owner
                else Client(home, visible=visible, user=owner)
            )
            path = request.path_params
            asked = ApiRequest(
                *(home, client, lists, boards, path, asks, gives, owners, user, visible),
                preferences,
            )
            made = partial(on_made, request) if on_made else None
            return await run_sync(self._respond, asked, locks, made, limiter=limiter)

        return Route(self.full_path, respond, methods=[self.method])

    def _respond(
        self, asked: ApiRequest, locks: _Locks, on_made: Callable[[int], None] | None
    ) -> Response:
        try:
            with nullcontext() if self.method == "GET" else locks.of(str(asked.path)):
                found = self.does(asked)
                if on_made is not None and isinstance(found, Made):
                    on_made(found.id)
        except Refused as error:
            return failed(error.status, str(error))
        except ConfigError as error:
            return failed(400, str(error))
        except DetError as error:
            return failed(409, str(error))
        if isinstance(found, Response):
            return found
        return Response(msgspec.json.encode(found), self.status, NO_STORE, "application/json")


class _Locks:
    """A lock for each path, as long as a request holds it or waits for it.

    Requests that change the same object follow each other. Those for others do not wait, because
    it takes seconds to start a driver.
    """

    def __init__(self) -> None:
        self._locks = WeakValueDictionary[str, threading.Lock]()
        self._guard = threading.Lock()

    def of(self, path: str) -> threading.Lock:
        """Return the lock of a path."""
        with self._guard:
            return self._locks.setdefault(path, threading.Lock())


def visible_to(request: Request) -> Visible | None:
    """Return the experiments that exist now for who sent a request. None means all.

    A server with users sets `request.state.look`, which returns them.
    """
    look: Callable[[], Visible] | None = getattr(request.state, "look", None)
    return look() if look is not None else None


def failed(status: int, problem: str) -> Response:
    """Return a reply that is an error."""
    return Response(msgspec.json.encode(Problem(problem)), status, NO_STORE, "application/json")
