"""TLS for connections that leave the machine, with a certificate that the listener makes.

No authority signs the certificate. The proofs of the key cover its fingerprint, so a man in the
middle is detected. The certificate's own signature is not checked.
"""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import threading
from datetime import UTC, datetime
from typing import Any

_RECORD = 1 << 14
"""The most bytes that TLS encrypts at once.

A frame begins with a record, so no frame waits here until a descriptor is ready.
"""


class TlsSocket(ssl.SSLSocket):
    """A TLS socket in which one thread at a time encrypts or decrypts.

    It raises BlockingIOError where it would have to wait, like other sockets.
    """

    turn: threading.Lock

    def put(self, views: list[memoryview]) -> int:
        """Send some bytes of the first view, and return their number."""
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
        """End the connection. Python's own method would let other threads continue without TLS."""
        socket.socket.shutdown(self, how)

    @property
    def fingerprint(self) -> bytes:
        """The SHA-256 of the listener's certificate, as the connecting end received it."""
        return hashlib.sha256(self.getpeercert(binary_form=True) or b"").digest()


class TlsContext:
    """A TLS context for one side of connections.

    A listener has a new certificate with `fingerprint`. A client accepts any certificate.
    """

    def __init__(self, *, listens: bool) -> None:
        self._listens = listens
        self._context = ssl.SSLContext(
            ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT
        )
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.sslsocket_class = TlsSocket
        self.fingerprint = b""
        if listens:
            # No client resumes a session with a ticket, and a ticket would look like the beginning
            # of a frame.
            self._context.num_tickets = 0
            self._certify()
        else:
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE

    def over(self, sock: socket.socket) -> TlsSocket:
        """Return the socket under TLS. The handshake has still to be made."""
        found = self._context.wrap_socket(
            sock, server_side=self._listens, do_handshake_on_connect=False
        )
        assert isinstance(found, TlsSocket)
        found.turn = threading.Lock()
        return found

    def _certify(self) -> None:
        certificate, pem = _make_certificate()
        self.fingerprint = hashlib.sha256(certificate).digest()
        # The key is never on a disk, and OpenSSL reads files only.
        with open(os.memfd_create("det-certificate"), "wb") as file:
            file.write(pem)
            file.flush()
            self._context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _make_certificate() -> tuple[bytes, bytes]:
    """Return a new certificate in DER, and the certificate with its private key in PEM."""
    # The import takes a tenth of a second, so only processes that listen beyond loopback make it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, nobody = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    certificate = (
        x509.CertificateBuilder(nobody, nobody, key.public_key(), x509.random_serial_number())
        # The certificate ends with this process, and the clocks of two machines may differ.
        .not_valid_before(datetime(1970, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2049, 12, 31, tzinfo=UTC))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.DER), certificate.public_bytes(Encoding.PEM) + secret
