"""Where Gloo's ranks leave their addresses for one another: a small store of keys and values over HTTP."""

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

from det_core.backend import Ranks

TIMEOUT_SECONDS = 600.0
MAX_VALUE = 1 << 20  # a rank leaves an address or two for each other rank


@dataclass(frozen=True, kw_only=True)
class Slot(Ranks):
    """Where Horovod sees one rank: `cross_*` count the hosts that have a rank of the same local number."""

    hostname: str

    def variables(self) -> dict[str, str]:
        """Return the variables that tell Horovod."""
        return {f"HOROVOD_{name.upper()}": str(value) for name, value in vars(self).items()}


def horovod_slots(places: Sequence[Ranks]) -> list[Slot]:
    """Return where Horovod sees the ranks; it numbers the hosts anew for each local rank."""
    slots = []
    for place in places:
        hosts = sorted(other.cross_rank for other in places if other.local_rank == place.local_rank)
        numbers = {"cross_rank": hosts.index(place.cross_rank), "cross_size": len(hosts)}
        slots.append(Slot(**{**vars(place), **numbers}, hostname=f"host{place.cross_rank}"))
    return slots


class Rendezvous:
    """Horovod's rendezvous server without horovodrun, listening on a free port of `host` until it is closed.

    Speaks the protocol of `horovod.runner.http.http_server` (PUT, GET, DELETE of /scope/key), for ranks of any Horovod with
    Gloo. Unlike there, each path begins with a secret; whoever does not know it is refused after the head of its request.
    """

    def __init__(self, host: str, slots: Iterable[Slot]) -> None:
        self._token = secrets.token_urlsafe(24)
        self._server = _Server((host, 0), self._token, Store(slots))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def path(self) -> str:
        """Return what follows the host in each rank's `HOROVOD_GLOO_RENDEZVOUS_ADDR`; it is a secret of the ranks."""
        return f":{self.port}/{self._token}/"

    def close(self) -> None:
        """Stop listening; safe to call twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def address_variables(host: str, path: str, timeout: float = TIMEOUT_SECONDS) -> dict[str, str]:
    """Return the variables with which ranks meet over Gloo, in `timeout` seconds, at the rendezvous that they reach as `host`.

    Horovod makes its addresses as http://ADDR:PORT/scope/key, which leaves room in ADDR for port and secret; PORT becomes a
    part of the path.
    """
    return {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host + path,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, round(timeout))),
    }


class Store:
    """Keys and values in scopes; one that all of its ranks are done with is emptied, so that they can meet again."""

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
            if scope not in self._sizes:  # one that ranks opened themselves, as for a process set
                self._scopes[scope].pop(key, None)
                return
            self._done[scope].add(key)
            if len(self._done[scope]) == self._sizes[scope]:
                del self._scopes[scope], self._done[scope]


class _Server(ThreadingMixIn, TCPServer):
    """Unlike `http.server.HTTPServer`, it asks no name server for the name of the host."""

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
            with contextlib.suppress(OSError):  # it has ended by itself
                request.shutdown(socket.SHUT_RDWR)
        super().server_close()  # waits for the threads

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of those who come with something else, or leave early."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0

    def do_GET(self) -> None:
        if place := self._place():
            value = self.server.store.get(*place)
            self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        if place := self._place():
            length = self.headers.get("Content-Length", "")
            if not length.isdecimal() or int(length) > MAX_VALUE:
                self._answer(413)
                return
            self.server.store.put(*place, self.rfile.read(int(length)))
            self._answer(200)

    def do_DELETE(self) -> None:
        if place := self._place():
            self.server.store.delete(*place)
            self._answer(200)

    def _place(self) -> tuple[str, str] | None:
        """Return scope and key of a request by one who knows the secret; answer any other."""
        parts = self.path.split("/")  # "", secret, Horovod's ":PORT", scope, key
        if len(parts) == 5 and hmac.compare_digest(parts[1].encode(), self.server.token):
            return parts[3], parts[4]
        self._answer(403)
        return None

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
