"""Where Gloo's ranks leave their addresses for one another: a small store of keys and values over HTTP."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, ClassVar, Self

MAX_VALUE = 1 << 20  # a rank leaves an address or two for each other rank
_TIMEOUT_SECONDS = 10.0
_THREAD = "det-horovod-rendezvous"


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where Horovod sees one rank; unlike `Ranks`, it counts the hosts that have a rank of the same local number."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str

    def variables(self) -> dict[str, str]:
        """Return the variables that tell Horovod."""
        return {f"HOROVOD_{name.upper()}": str(value) for name, value in vars(self).items()}


class Rendezvous:
    """Horovod's rendezvous server without horovodrun, listening on a free port of `host` until it is closed.

    Speaks the protocol of `horovod.runner.http.http_server` (PUT, GET, DELETE of /scope/key), for ranks of any Horovod with
    Gloo. Unlike there, each path begins with a secret; whoever does not know it is refused after the head of its request.
    """

    def __init__(self, host: str, slots: Iterable[Slot]) -> None:
        self._token = secrets.token_urlsafe(24)
        store = Store(slots)
        self._server = _Server((host, 0), _handler(self._token, store))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name=_THREAD, daemon=True
        )
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


def address_variables(host: str, path: str) -> dict[str, str]:
    """Return the variables with which a rank finds the rendezvous that it reaches as `host`.

    Horovod makes its addresses as http://ADDR:PORT/scope/key, which leaves room in ADDR for port and secret; PORT becomes a
    part of the path.
    """
    return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": host + path, "HOROVOD_GLOO_RENDEZVOUS_PORT": "0"}


class Store:
    """Keys and values in scopes; one that all of its ranks are done with is emptied, so that they can meet again."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        self._lock = threading.Lock()
        self._scopes: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        self._done: defaultdict[str, set[str]] = defaultdict(set)
        self._sizes = {name: size for slot in slots for name, size in _scopes_of(slot).items()}

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


def _scopes_of(slot: Slot) -> Mapping[str, int]:
    return {
        "global": slot.size,
        f"local_{slot.hostname}": slot.local_size,
        f"cross_{slot.local_rank}": slot.cross_size,
    }


class _Server(ThreadingMixIn, TCPServer):
    """Unlike `http.server.HTTPServer`, it asks no name server for the name of the host."""

    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._serving: dict[threading.Thread, socket.socket] = {}
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(target=self._serve, args=(request, client_address), daemon=True)
        self._serving[thread] = request
        thread.start()

    def _serve(self, request: Any, client_address: Any) -> None:
        self.process_request_thread(request, client_address)
        del self._serving[threading.current_thread()]

    def server_close(self) -> None:
        super().server_close()
        for thread, request in list(self._serving.items()):
            with contextlib.suppress(OSError):  # it has ended by itself
                request.shutdown(socket.SHUT_RDWR)
            thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of those who come with something else, or leave early."""


def _handler(token: str, store: Store) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"token": token, "store": store})


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_SECONDS
    token: ClassVar[str]
    store: ClassVar[Store]

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_PUT(self) -> None:
        self._serve(self._put)

    def do_DELETE(self) -> None:
        self._serve(self._delete)

    def _serve(self, verb: Callable[[str, str], None]) -> None:
        parts = self.path.split("/")  # "", secret, Horovod's ":PORT", scope, key
        if len(parts) != 5 or not hmac.compare_digest(parts[1].encode(), self.token.encode()):
            self._answer(403)
            return
        verb(parts[3], parts[4])

    def _get(self, scope: str, key: str) -> None:
        value = self.store.get(scope, key)
        self._answer(404 if value is None else 200, value or b"")

    def _put(self, scope: str, key: str) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_VALUE:
            self._answer(413)
            return
        self.store.put(scope, key, self.rfile.read(int(length)))
        self._answer(200)

    def _delete(self, scope: str, key: str) -> None:
        self.store.delete(scope, key)
        self._answer(200)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
