"""Requests to a `det server`, with the standard library alone."""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

from det_core.errors import DetError

_SECONDS = 60.0
"""How long a server may be silent. While a command runs, it sends a blank line at intervals."""
_CHUNK = 512 << 10
"""The bytes of an archive that are sent in one request."""
_LONGEST_FRAME = 4 << 20
ERROR_KIND = "x-det-error"
"""The header of a refusal with the name of the error in the server's home."""


class Lost(DetError):
    """The server cannot be reached, or the connection broke."""


def check_address(address: str, *, insecure: bool = False) -> str:
    """Return an address in its one form: scheme, host, port and path, without a slash at the end.

    Without a scheme it is https, and http for this machine. Raises DetError for what is no address,
    and for plain http to another machine, unless `insecure`: the password and the token could be
    read on the way.
    """
    try:
        parts = urlsplit(address if "://" in address else f"https://{address}")
        if "://" not in address and _is_loopback(parts.hostname or ""):
            parts = parts._replace(scheme="http")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise DetError(
            f"{address!r} is no address of a server; give one such as https://gpu.example.org:8443"
        )
    if parts.username is not None or parts.password is not None:
        raise DetError("the address holds a name or password; give the name by --user")
    if not (f"{parts.hostname}{parts.path}".isascii() and address.isprintable()):
        raise DetError(f"{address!r} is no address of a server; write it in ASCII")
    if parts.scheme == "http" and not insecure and not _is_loopback(parts.hostname):
        raise DetError(
            f"{address} is plain http to another machine, where others could read the password and"
            " the token; use https, or det login --insecure-http"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    where = f"{host}:{port}" if port is not None else host
    return f"{parts.scheme}://{where}{parts.path.rstrip('/')}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class RemoteServer:
    """A server at `address`, as `check_address` returns it, and the token that it knows us by.

    The token goes to this address only: redirects are not followed. Every method raises `Lost`
    where the server cannot be reached, and DetError with the server's sentence where it refuses.
    It cannot be reached if it is silent for so many `seconds`.
    """

    def __init__(
        self, address: str, token: str | None = None, *, seconds: float = _SECONDS
    ) -> None:
        self.address = address
        self._seconds = seconds
        self._token = token
        self._parts = urlsplit(address)
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str) -> Any:
        """Return the JSON of an endpoint below /api/v1."""
        return self._json("GET", path)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send JSON to an endpoint below /api/v1, and return its JSON."""
        return self._json("POST", path, json.dumps(body).encode())

    def delete(self, path: str) -> None:
        """Delete the object of an endpoint below /api/v1."""
        self._json("DELETE", path)

    def send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request to an endpoint below /api/v1, and return what it answers."""
        response = self._send(method, path, body)
        data = self._read(response)
        self._check(response, data)
        return data

    @contextmanager
    def stream(self, path: str) -> Iterator[IO[bytes]]:
        """Give a file with the answer of an endpoint below /api/v1.

        It ends early where the connection is closed. Raises Lost where it breaks otherwise.
        """
        response = self._send("GET", path)
        if response.status >= 300:
            self._check(response, self._read(response))
        try:
            yield response
        # Other errors may be of the disk that the caller writes to.
        except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
            raise self._lost(error) from error
        finally:
            self.close()

    def upload(self, digest: str, size: int, file: IO[bytes]) -> int:
        """Send an archive, from where the server has it. Return the bytes that were sent."""
        held = self.get(f"/code/{digest}")
        offset = first = size if held["complete"] else held["offset"]
        while offset < size:
            file.seek(offset)
            query = urlencode({"offset": offset, "size": size})
            data = file.read(_CHUNK)
            offset = self._json("PUT", f"/code/{digest}?{query}", data)["offset"]
        return size - first

    def frames(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Send a request, and yield each line of JSON that is answered.

        Raises Lost where the answer breaks off.
        """
        sent = None if body is None else json.dumps(body).encode()
        response = self._send(method, path, sent)
        if response.status >= 300:
            self._check(response, self._read(response))
        try:
            while line := response.readline(_LONGEST_FRAME):
                if line.strip():
                    yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._lost(error) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _json(self, method: str, path: str, body: bytes | None = None) -> Any:
        data = self.send(method, path, body)
        try:
            return json.loads(data) if data else None
        except ValueError:
            raise self._foreign() from None

    def _send(self, method: str, path: str, body: bytes | None = None) -> http.client.HTTPResponse:
        headers = {"x-det": "1", "accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json" if method == "POST" else "application/gzip"
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        path = f"{quote(self._parts.path)}/api/v1{path}"
        # A server may close an idle connection.
        for fresh in (self._connection is None, True):
            try:
                connection = self._connection = self._connection or self._connect()
                connection.request(method, path, body, headers)
                return connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if fresh or isinstance(error, TimeoutError):
                    raise self._lost(error) from error
        raise AssertionError

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._seconds)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, port, timeout=self._seconds, context=context)

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error

    def _check(self, response: http.client.HTTPResponse, data: bytes) -> None:
        """Raise DetError for a reply that is not a success."""
        status = response.status
        if status < 300:
            return
        self.close()
        if status < 400:
            where = response.getheader("location") or "another address"
            raise DetError(
                f"{self.address} sends us to {where}, where the token does not go; sign in there:"
                " det login ADDRESS"
            )
        if status == 401 and self._token:
            raise DetError(
                f"you are no longer signed in to {self.address}; sign in: det login {self.address}"
            )
        try:
            message = str(json.loads(data)["error"])
        except (ValueError, KeyError, TypeError):
            raise self._foreign(status) from None
        raise Refusal(status, message, response.getheader(ERROR_KIND) or "")

    def _foreign(self, status: int = 200) -> DetError:
        detail = f", which answers with status {status}" if status >= 400 else ""
        text = f"there is no det server at {self.address}{detail}; check the address"
        # A proxy says so while the server behind it is restarted.
        return Lost(text) if status >= 500 else DetError(text)

    def _lost(self, error: Exception) -> Lost:
        if isinstance(error, ssl.SSLCertVerificationError):
            return Lost(
                f"the certificate of {self.address} is not trusted: {error.verify_message}; set"
                " SSL_CERT_FILE to the certificate of its authority"
            )
        if isinstance(error, socket.gaierror):
            return Lost(f"there is no host {self._parts.hostname}; check the address")
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Lost(f"cannot reach {self.address}: {reason.lower()}; check that det server runs")


class Refusal(DetError):
    """The server refuses a request, with a status and a sentence.

    `kind` is the name of the error in det, where there is one.
    """

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
