"""TLS for connections that leave the machine: with a certificate that the listener makes, and for which no authority vouches.

The key that both sides hold does: what each proves of it covers the certificate's fingerprint, so that whoever ends the
encryption in between is found out. Nobody reads the certificate's own signature, and it has none.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import ssl
import threading
from typing import Any

_RECORD = 1 << 14
"""What TLS encrypts at once; a frame begins with a record, so that none waits here for a descriptor to be ready."""

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1  # the curve P-256: its field, its order, its generator
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_CURVE = bytes.fromhex("06082a8648ce3d030107")
_EC_KEY = bytes.fromhex("06072a8648ce3d0201")
_ECDSA_SHA256 = bytes.fromhex("06082a8648ce3d040302")


class Sealed(ssl.SSLSocket):
    """A socket under TLS, of whose threads one at a time encrypts or decrypts; it says as others do that it would have to wait."""

    turn: threading.Lock

    def put(self, views: list[memoryview]) -> int:
        """Send some of the first of these."""
        with self.turn:
            try:
                return self.send(views[0][:_RECORD])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        with self.turn:
            try:
                return super().read(len, buffer)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def shutdown(self, how: int) -> None:
        """End the connection; what Python does here would let other threads go on in the clear."""
        socket.socket.shutdown(self, how)

    @property
    def fingerprint(self) -> bytes:
        """Of the listener's certificate, as this end, which connected, has got it."""
        return hashlib.sha256(self.getpeercert(binary_form=True) or b"").digest()


class Veil:
    """One side's TLS: that of who listens has a new certificate with `fingerprint`, the other takes any."""

    def __init__(self, *, listens: bool) -> None:
        self._listens = listens
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.sslsocket_class = Sealed
        self.fingerprint = b""
        if listens:
            # Nobody comes again with a ticket, and it would look like the beginning of a frame.
            self._context.num_tickets = 0
            self._certify()
        else:
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE

    def over(self, sock: socket.socket) -> Sealed:
        """Return the socket under TLS, whose handshake is still to be made."""
        found = self._context.wrap_socket(sock, server_side=self._listens, do_handshake_on_connect=False)
        assert isinstance(found, Sealed)
        found.turn = threading.Lock()
        return found

    def _certify(self) -> None:
        secret = secrets.randbelow(_ORDER - 1) + 1
        certificate, key = _certificate(secret), _private_key(secret)
        self.fingerprint = hashlib.sha256(certificate).digest()
        pem = ssl.DER_cert_to_PEM_cert
        text = pem(certificate) + pem(key).replace("CERTIFICATE", "EC PRIVATE KEY")
        with open(os.memfd_create("det-certificate"), "w+") as file:  # it is on no disk, and OpenSSL reads files only
            file.write(text)
            file.flush()
            self._context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _certificate(secret: int) -> bytes:
    """Return the certificate of a secret number's public key, in DER."""
    x, y = _times(secret)
    public = b"\0\4" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    algorithm, nobody = _der(0x30, _ECDSA_SHA256), _der(0x30)
    always = _der(0x30, _der(0x17, b"700101000000Z"), _der(0x17, b"491231235959Z"))
    subject_key = _der(0x30, _der(0x30, _EC_KEY, _CURVE), _der(3, public))
    content = _der(0x30, _der(2, b"\1"), algorithm, nobody, always, nobody, subject_key)
    return _der(0x30, content, algorithm, _der(3, b"\0", _der(0x30, _der(2, b"\1"), _der(2, b"\1"))))


def _private_key(secret: int) -> bytes:
    return _der(0x30, _der(2, b"\1"), _der(4, secret.to_bytes(32, "big")), _der(0xA0, _CURVE))


def _der(tag: int, *parts: bytes) -> bytes:
    """Return one value of ASN.1, whose contents are below 64 KiB."""
    content = b"".join(parts)
    size = len(content)
    digits = size.to_bytes(1 if size < 0x100 else 2, "big")
    return bytes([tag]) + (digits if size < 0x80 else bytes([0x80 + len(digits)]) + digits) + content


def _times(number: int) -> tuple[int, int]:
    """Return the generator, added to itself so many times."""
    power, found = _G, None
    while number:
        if number & 1:
            found = _sum(found, power) if found else power
        power, number = _sum(power, power), number >> 1
    assert found
    return found


def _sum(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return the sum of two points of the curve that are not each other's opposites."""
    (x1, y1), (x2, y2) = one, other
    slope = (3 * x1 * x1 - 3) * pow(2 * y1, -1, _P) if one == other else (y2 - y1) * pow(x2 - x1, -1, _P)
    x = (slope * slope - x1 - x2) % _P
    return x, (slope * (x1 - x) - y1) % _P
