"""The HTTP key-value store by which Gloo's ranks exchange their addresses."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Self

from det_core.ranks.backend import Ranks
from det_core.support.threads import start_thread

TIMEOUT_SECONDS = 600.0
# A rank stores one or two addresses for each other rank.
MAX_VALUE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Slot(Ranks):
    """A rank in Horovod's numbering.

    `cross_*` count the hosts that have a rank of the same local rank.
    """

    hostname: str

    def variables(self) -> dict[str, str]:
        """Return the environment variables that give Horovod its rank."""
        return {f"HOROVOD_{name.upper()}": str(value) for name, value in vars(self).items()}


def horovod_slots(places: Sequence[Ranks]) -> list[Slot]:
    """Return the ranks in Horovod's numbering.

    It numbers the hosts separately for each local rank.
    """
    slots = []
    for place in places:
        hosts = sorted(other.cross_rank for other in places if other.local_rank == place.local_rank)
        numbers = {"cross_rank": hosts.index(place.cross_rank), "cross_size": len(hosts)}
        slots.append(Slot(**{**vars(place), **numbers}, hostname=f"host{place.cross_rank}"))
    return slots


class Rendezvous:
    """Horovod's rendezvous server without horovodrun.

    It listens on a free port of `host` until it is closed. It implements the protocol of
    `horovod.runner.http.http_server`: PUT, GET and DELETE of /scope/key. It serves ranks of any
    Horovod with Gloo. Unlike Horovod's server, it puts a secret in front of each path. A request
    without the secret is refused after its header.
    """

    def __init__(self, host: str, slots: Iterable[Slot]) -> None:
        self._token = secrets.token_urlsafe(24)
        self._server = _Server((host, 0), self._token, Store(slots))
        self._thread = start_thread(self._server.serve_forever, 0.05, name="det-rendezvous")

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self._server.server_address[1])

    def path(self) -> str:
        """Return the part behind the host in each rank's `HOROVOD_GLOO_RENDEZVOUS_ADDR`.

        It contains the secret.
        """
        return f":{self.port}/{self._token}/"

    def close(self) -> None:
        """Stop the server. It may be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def address_variables(host: str, path: str, timeout: float = TIMEOUT_SECONDS) -> dict[str, str]:
    """Return the environment variables by which ranks find Gloo's rendezvous at `host`.

    The ranks must connect within `timeout` seconds. Horovod forms addresses as
    http://ADDR:PORT/scope/key. Port and secret are a part of ADDR here, so that PORT becomes a part
    of the path.
    """
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host + path,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, round(timeout))),
    }


class Store:
    """Keys and values in scopes.

    When all ranks of a scope have deleted their keys, the scope is emptied, so that the ranks can
    use it again.
    """

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._lock = threading.Lock()
        self._scopes: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        self._done: defaultdict[str, set[str]] = defaultdict(set)
        self._sizes: dict[str, int] = {}
        for slot in slots:
            self._sizes["global"] = slot.size
            self._sizes[f"local_{slot.hostname}"] = slot.local_size
            self._sizes[f"cross_{slot.local_rank}"] = slot.cross_size

    def get(self, scope: str, key: str) -> bytes | None:
        with self._lock:
            return self._scopes[scope].get(key)

    def put(self, scope: str, key: str, value: bytes) -> None:
        with self._lock:
            self._scopes[scope][key] = value

    def delete(self, scope: str, key: str) -> None:
        with self._lock:
            if scope not in self._sizes:
                # The ranks created this scope themselves, for example for a process set.
                self._scopes[scope].pop(key, None)
                return
            self._done[scope].add(key)
            if len(self._done[scope]) == self._sizes[scope]:
                del self._scopes[scope], self._done[scope]


class _Server(ThreadingMixIn, TCPServer):
    """A TCP server that, unlike `http.server.HTTPServer`, does not look up the name of the host."""

    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], token: str, store: Store) -> None:
        self.token, self.store = token.encode(), store
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for request in list(self._open):
            # The connection may be closed already.
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        # This waits for the threads.
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that send something else or disconnect early."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0

    def do_GET(self) -> None:
        if place := self._place():
            value = self.server.store.get(*place)
            self._respond(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        if place := self._place():
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MAX_VALUE:
                self._respond(413)
                return
            self.server.store.put(*place, self.rfile.read(int(length)))
            self._respond(200)

    def do_DELETE(self) -> None:
        if place := self._place():
            self.server.store.delete(*place)
            self._respond(200)

    def _place(self) -> tuple[str, str] | None:
        """Return scope and key of a request that has the secret. Refuse any other request."""
        # The parts are "", secret, Horovod's ":PORT", scope and key.
        parts = self.path.split("/")
        if len(parts) == 5 and hmac.compare_digest(parts[1].encode(), self.server.token):
            return parts[3], parts[4]
        self._respond(403)
        return None

    def _respond(self, status: int, body: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
