"""A laptop and a server as two machines, whose cable is cut."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.det_server.conftest import PASSWORD, fill
from tests.det_server.test_remote import CONFIG, TRAIN
from tests.support.clusters.hosts import Network, joined, kill_all, why_no_network

from det_driver.store import Store

PORT = "8443"
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(bool(why_no_network()), reason=why_no_network() or "there is a network"),
]


@pytest.fixture
def network(processes: object) -> Iterator[Network]:
    with joined(2) as found:
        yield found
        kill_all(found)


def write_certificate(place: Path, address: str) -> tuple[Path, Path]:
    """Write a certificate for an address, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, address)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), False
        )
        .sign(key, hashes.SHA256())
    )
    files = place / "certificate.pem", place / "key.pem"
    pem = serialization.Encoding.PEM
    files[0].write_bytes(certificate.public_bytes(pem))
    files[1].write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def make_environment(place: Path, *packages: str) -> Path:
    """Make an environment with links to the installed packages and what they require."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    left, seen = [*packages], set[str]()
    while left:
        name = left.pop()
        try:
            found = distribution(name)
        except PackageNotFoundError:
            # For another platform or Python.
            continue
        if found.name in seen:
            continue
        seen.add(found.name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(str(found.locate_file(top)))
        left += [
            re.split(r"[^\w.-]", each)[0] for each in found.requires or () if "extra ==" not in each
        ]
    return place / "bin" / "python"


def test_a_trial_ends_while_the_laptop_is_cut_off(network: Network, tmp_path: Path) -> None:
    server, laptop = network.names
    home, code, gate = tmp_path / "home", tmp_path / "code", tmp_path / "gate"
    fill(home)
    certificate, key = write_certificate(tmp_path, server)
    python = make_environment(tmp_path / "laptop", "det-driver")
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run([python, "-c", "import torch"], check=True, capture_output=True)
    clean = {name: each for name, each in os.environ.items() if not name.startswith("DET_")}

    def on(host: str, *argv: str) -> list[str]:
        return ["ip", "netns", "exec", host, *argv]

    serving = subprocess.Popen(
        on(
            server,
            *(sys.executable, "-P", "-m", "det_driver.cli", "server", "start", "--host", server),
            *("--allow-host", server, "--port", PORT),
            *("--certificate", str(certificate), "--key", str(key)),
        ),
        stdout=subprocess.PIPE,
        text=True,
        env={**clean, "DET_HOME": str(home), "DET_MASTER": ""},
    )
    assert serving.stdout is not None
    while "is at" not in (line := serving.stdout.readline()):
        assert line, "the server has ended"

    environ = {
        **{name: each for name, each in clean.items() if name != "PYTHONPATH"},
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "HOME": str(tmp_path),
        "SSL_CERT_FILE": str(certificate),
    }

    def det(*words: str) -> list[str]:
        return on(laptop, str(python), "-P", "-m", "det_driver.cli", *words)

    def run(*words: str, given: str = "") -> str:
        done = subprocess.run(
            det(*words), input=given, capture_output=True, text=True, env=environ, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    address = f"https://{server}:{PORT}"
    login = ("login", address, "--user", "ann", "--password-stdin")
    assert run(*login, given=f"{PASSWORD}\n").startswith(f"signed in to {address} as ann (editor)")
    code.mkdir()
    (code / "train.py").write_text(TRAIN.replace("GATE", repr(str(gate))))
    (code / "const.yaml").write_text(CONFIG)
    assert run("run", str(code / "const.yaml"), "--detach").startswith("experiment 4 runs on")
    following = subprocess.Popen(
        det("logs", "-f", "--no-times", "4"), stdout=subprocess.PIPE, text=True, env=environ
    )
    assert following.stdout is not None
    lines = [following.stdout.readline() for _ in range(3)]
    network.cut(laptop)
    gate.touch()
    with Store.reader(home) as store:
        while (state := store.experiments.get(4).state) == "ACTIVE":
            time.sleep(0.1)
    assert state == "COMPLETED"
    network.mend(laptop)
    rest, _ = following.communicate()
    shown = ["step 1", "step 2", "step 3", "the end"]
    assert [*lines, *rest.splitlines(True)] == [f"[trial 4 run 1 rank-0] {x}\n" for x in shown]
    serving.terminate()
    serving.communicate()
