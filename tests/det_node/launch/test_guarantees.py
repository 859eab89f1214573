"""What an agent guarantees holds for the ranks of a launch, on one host and on two."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

LEASE = 8.0
SAVES = """
def save(*_):
    open(f"saved-{rank}", "w").close()
    END
signal.signal(signal.SIGTERM, save)
open(f"ready-{rank}", "w").close()
while True:
    time.sleep(0.05)
"""
# As ssh: a client that carries its standard input and output, and a server that runs commands.
REMOTE = """
import json, socket, subprocess, sys, threading

def pump(source, target):
    while data := source(1 << 16):
        target(data)

if sys.argv[1] == "serve":
    server = socket.create_server(("", 7022))
    print("ready", flush=True)
    while True:
        peer = server.accept()[0]
        argv = json.loads(peer.makefile("rb", buffering=0).readline())
        subprocess.Popen(argv, stdin=peer.fileno(), stdout=peer.fileno())
        peer.close()
else:
    sock = socket.create_connection((sys.argv[1], 7022))
    sock.sendall(json.dumps(sys.argv[2:]).encode() + b"\\n")
    read = lambda size: sys.stdin.buffer.raw.read(size)
    write = lambda data: (sys.stdout.buffer.write(data), sys.stdout.buffer.flush())
    threading.Thread(target=pump, args=(read, sock.sendall), daemon=True).start()
    pump(sock.recv, write)
"""


@pytest.fixture
def remote(tmp_path: Path, hosts) -> Iterator[Path]:
    """A file with the client of a server on the second host."""
    file = tmp_path / "remote.py"
    file.write_text(REMOTE)
    serve = ["ip", "netns", "exec", hosts.names[1], sys.executable, str(file), "serve"]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE)
    assert server.stdout
    assert server.stdout.readline() == b"ready\n"
    yield file
    server.kill()
    server.communicate()


def are_ready(det) -> bool:
    return len([*det.cwd.glob("ready-*")]) == 2


def test_a_cut_cable_ends_the_ranks_on_both_sides(
    launch, hosts, network, remote, note, ranks, all_gone, wait_until
) -> None:
    """Those that cannot be reached get SIGTERM within the lease, and are killed at its end."""
    script = note + SAVES.replace("END", "")
    hosts.agent = f"{sys.executable} {remote} {{host}}"
    inside = ("ip", "netns", "exec", hosts.names[0])
    process = launch.impatient(LEASE, script, *hosts.options(1, 1), inside=inside)
    pids = ranks()
    wait_until(lambda: are_ready(launch.det), "ranks that handle signals")
    network.cut(hosts.names[1])
    began = time.monotonic()
    try:
        output, _ = process.communicate(timeout=40)
        assert all_gone(pids) < 4
        assert time.monotonic() - began < LEASE + 12
    finally:
        network.mend(hosts.names[1])
    assert process.returncode == 2
    assert f"det: the host {hosts.names[1]!r} has said nothing for 8 s" in output
    assert launch.det.cwd.joinpath("saved-1").exists()


def test_sigterm_to_every_process_of_two_hosts_saves(
    launch, hosts, note, ranks, wait_until
) -> None:
    process = launch.start(
        note + SAVES.replace("END", "time.sleep(1); sys.exit(0)"), *hosts.options(1, 1)
    )
    ranks()
    wait_until(lambda: are_ready(launch.det), "ranks that handle signals")
    for pid in (*hosts.processes(), process.pid):
        os.kill(pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert {file.name for file in launch.det.cwd.glob("saved-*")} == {"saved-0", "saved-1"}


def test_ranks_of_a_frozen_launcher_save_and_end(launch, note, ranks, all_gone, wait_until) -> None:
    process = launch.impatient(LEASE, note + SAVES.replace("END", "sys.exit(0)"))
    pids = ranks()
    wait_until(lambda: are_ready(launch.det), "ranks that handle signals")
    process.send_signal(signal.SIGSTOP)
    assert LEASE / 3 < all_gone(pids) < LEASE
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "")


def test_output_that_is_read_late_is_whole(launch, hosts) -> None:
    """Ranks that have ended, more than pipes and sockets hold, and an agent that acts as ssh."""
    unblock = "import os, sys; os.set_blocking(2, False); os.execvp(sys.argv[1], sys.argv[1:])"
    hosts.agent = f"{sys.executable} -c '{unblock}' {hosts.agent}"
    process = launch.start("for n in range(100000): print(n, 'x' * 80)", *hosts.options(1, 1))
    time.sleep(4)
    assert process.poll() is None
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    for rank in range(2):
        lines = [line for line in output.splitlines() if line.startswith(f"[rank={rank}] ")]
        assert [int(line.split()[1]) for line in lines] == list(range(100000))


def test_a_host_waits_for_another_that_answers_late(launch, hosts) -> None:
    """Its agent has no rank yet, and would end after twice the lease without a heartbeat."""
    late = f'[ "$0" = {hosts.names[1]} ] && sleep 5; exec ip netns exec "$0" "$@"'
    hosts.agent = f"sh -c '{late}' {{host}}"
    process = launch.impatient(2, "print('begun')", *hosts.options(1, 1))
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, sorted(output.splitlines())) == (
        0,
        ["[rank=0] begun", "[rank=1] begun"],
    )
