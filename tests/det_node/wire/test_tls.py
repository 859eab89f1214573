"""What the certificate of a listener is, and what it costs those who have none."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from det_node.wire._tls import TlsContext, _make_certificate

LAZY = """
import sys
from det_node.wire import Server
from det_node.wire._tls import TlsContext
Server(bytes(32), lambda link: None, "127.0.0.1").close()
TlsContext(listens=False)
print("cryptography" in sys.modules)
TlsContext(listens=True)
print("cryptography" in sys.modules)
"""


def open_files() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(entry))
        except FileNotFoundError:
            # The descriptor that listed the directory.
            continue
    return found


def test_a_client_sees_the_fingerprint_of_the_listener() -> None:
    ends = socket.socketpair()
    listener = TlsContext(listens=True)
    server, client = listener.over(ends[0]), TlsContext(listens=False).over(ends[1])
    with server, client:
        for end in (server, client):
            end.settimeout(10)
        accepting = threading.Thread(target=server.do_handshake)
        accepting.start()
        client.do_handshake()
        accepting.join(10)
        assert client.version() == "TLSv1.3"
        assert client.fingerprint == listener.fingerprint
        client.sendall(b"attack at dawn")
        assert server.recv(100) == b"attack at dawn"


def test_each_listener_has_a_certificate_of_its_own() -> None:
    assert TlsContext(listens=True).fingerprint != TlsContext(listens=True).fingerprint


def test_a_certificate_is_signed_with_the_key_beside_it() -> None:
    certificate, pem = _make_certificate()
    found = x509.load_der_x509_certificate(certificate)
    key = found.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp256r1"
    assert found.signature_hash_algorithm is not None
    key.verify(
        found.signature, found.tbs_certificate_bytes, ec.ECDSA(found.signature_hash_algorithm)
    )
    assert (
        ssl.PEM_cert_to_DER_cert(pem.decode().partition("-----BEGIN PRIVATE KEY-----")[0])
        == certificate
    )


def test_the_file_in_memory_with_the_key_is_closed() -> None:
    TlsContext(listens=True)
    assert [name for name in open_files() if "det-certificate" in name] == []


def test_nothing_of_the_key_is_kept_or_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def make() -> tuple[bytes, bytes]:
        made.append(_make_certificate())
        return made[-1]

    monkeypatch.setattr("det_node.wire._tls._make_certificate", make)
    listener = TlsContext(listens=True)
    [(_, pem)] = made
    [first, *_] = pem.partition(b"-----BEGIN PRIVATE KEY-----\n")[2].splitlines()
    assert first.decode() not in repr(vars(listener))
    assert "PRIVATE" not in repr(vars(listener))


@pytest.mark.process
def test_only_listeners_under_tls_import_cryptography() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.split()) == (0, ["False", "True"]), done.stderr
