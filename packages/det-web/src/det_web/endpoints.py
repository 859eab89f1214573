"""What an endpoint is: its address, what it takes, what it answers; the router and the OpenAPI document are made of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from det_core.errors import ConfigError, DetError, StoreError
from det_driver.client import Client, Experiment, Trial
from det_driver.store import Store

from .boards import Boards
from .lists import Lists

ROOT = "/api/v1"
NO_STORE = {"cache-control": "no-store"}


class Refused(Exception):
    """An answer that is no success: a status, and one sentence."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


class Problem(msgspec.Struct):
    """What an answer says that is no success."""

    error: str


@dataclass(frozen=True)
class Asked:
    """One request: the home that is asked, the numbers in its address, its query and its body as they were declared."""

    home: Path
    client: Client
    lists: Lists
    boards: Boards
    path: Mapping[str, Any]
    query: Any
    body: Any

    @property
    def id(self) -> int:
        """The number in the address."""
        if (id := int(self.path["id"])) >= 10**18:
            raise Refused(404, "no experiment or trial has a number of so many digits")
        return id

    def store(self) -> Store:
        """Open the store to read."""
        return Store.reader(self.home)

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment of that number; 404 where there is none, 409 where it cannot be read."""
        found: Experiment = self._found(self.client.get_experiment, self.home / "experiments" / str(self.id))
        return found

    @cached_property
    def trial(self) -> Trial:
        """The trial of that number; 404 where there is none."""
        found: Trial = self._found(self.client.get_trial, None)
        return found

    def _found(self, get: Callable[[int], Any], place: Path | None) -> Any:
        try:
            return get(self.id)
        except StoreError as error:
            raise Refused(409 if place is not None and place.is_dir() else 404, str(error)) from error


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One method of one address below /api/v1; `answer` is a struct, or a media type where it is none."""

    method: str
    path: str
    does: Callable[[Asked], Any]
    answer: type | str
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    status: int = 200

    @property
    def says(self) -> str:
        """What it does, in a sentence."""
        return (self.does.__doc__ or "").strip().splitlines()[0]

    def route(self, home: Path, lists: Lists, boards: Boards) -> Route:
        """Return the route that answers it, for one home."""
        client = Client(home)
        lock = threading.Lock()
        query = msgspec.json.Decoder(self.query, strict=False) if self.query else None
        given = msgspec.json.Decoder(self.body) if self.body else None

        async def answer(request: Request) -> Response:
            body = await request.body()
            try:
                asks = query and query.decode(msgspec.json.encode(dict(request.query_params)))
                gives = given and given.decode(body)
            except (msgspec.ValidationError, msgspec.DecodeError) as error:
                return failed(400, str(error))
            asked = Asked(home, client, lists, boards, request.path_params, asks, gives)
            return await run_in_threadpool(self._answer, asked, lock)

        path = self.path.replace("{id}", "{id:int}").replace("{path}", "{path:path}")
        return Route(ROOT + path, answer, methods=[self.method])

    def _answer(self, asked: Asked, lock: threading.Lock) -> Response:
        try:
            with lock if self.method != "GET" else nullcontext():
                found = self.does(asked)
        except Refused as error:
            return failed(error.status, str(error))
        except ConfigError as error:
            return failed(400, str(error))
        except DetError as error:
            return failed(409, str(error))
        if isinstance(found, Response):
            return found
        return Response(msgspec.json.encode(found), self.status, NO_STORE, "application/json")


def failed(status: int, said: str) -> Response:
    """Return an answer that is no success."""
    return Response(msgspec.json.encode(Problem(said)), status, NO_STORE, "application/json")
