"""`det shell` on a server: a real pseudo-terminal, server, driver and agent."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.det_server.conftest import PASSWORD, fill
from tests.det_server.test_remote import Running, typed
from tests.support.terminal import LIMIT_SECONDS, Terminal

from det_driver.remote import Refusal, RemoteServer, RemoteTerminal, SignIns

pytestmark = [pytest.mark.process, pytest.mark.slow]
PROXY = "127.0.0.2"
SHELL = ("shell", "start", "--slots", "0", "--", "sh", "-i")


class Cable:
    """Relays connections to a port of this machine, unless it is cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.mend()

    def mend(self) -> None:
        self._call(self._listen())

    def cut(self) -> None:
        self._call(self._close())

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, doing: object) -> None:
        asyncio.run_coroutine_threadsafe(doing, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._relay, PROXY, self._port)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        for each in self._writers:
            each.transport.abort()
        self._writers.clear()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers |= {writer, back}
            await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()


@pytest.fixture
def server(processes: object, tmp_path: Path) -> Iterator[Running]:
    fill(tmp_path / "home")
    running = Running(tmp_path / "home", "--allow-host", PROXY)
    yield running
    running.kill()


@pytest.fixture
def cable(server: Running) -> Iterator[Cable]:
    made = Cable(server.port)
    yield made
    made.close()


@pytest.fixture
def address(server: Running, cable: Cable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server over the cable, to which ann is signed in."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("DET_HOME", "DET_MASTER"):
        monkeypatch.delenv(name, raising=False)
    return sign_in(f"http://{PROXY}:{server.port}", "ann", monkeypatch)


def sign_in(address: str, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{PASSWORD}\n"))
    out, err, status = typed("login", address, "--user", name, "--password-stdin")
    assert status == 0, (out, err)
    return address


@pytest.fixture
def shell(address: str, tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.txt").write_text("of my machine\n")
    made = open_shell("--code", str(tmp_path / "code"), cwd=tmp_path)
    yield made
    made.close()


def open_shell(*options: str, cwd: Path) -> Terminal:
    argv = [sys.executable, "-P", "-m", "det_driver.cli", *SHELL[:2], *options, *SHELL[2:]]
    return Terminal(argv, cwd=cwd, env={**os.environ, "TERM": "xterm-color", "PS1": ""})


def test_a_shell_on_a_server_has_a_terminal(
    shell: Terminal, server: Running, address: str, wait_until: Callable[..., object]
) -> None:
    shell.type("stty size; echo $TERM; cat mine.txt; echo is at $PWD\n")
    for each in ("30 100", "xterm-color", "of my machine", f"is at {server.home}"):
        shell.read_until(each)
    shell.resize(20, 50)
    os.kill(shell.process.pid, signal.SIGWINCH)
    # The program says that it runs, in other letters than the command that is echoed.
    shell.type("sh -c 'echo be''gun; exec sleep 600'\n")
    shell.read_until("begun")
    # Ctrl-C ends the program in the shell, and not the shell.
    shell.type("\x03")
    shell.type("stty size\n")
    shell.read_until("20 50")
    # More than is on the way at once, to the last byte.
    shell.type("seq 200000 | tail -n +100000; echo th''ere\n")
    shell.read_until("100000\r\n")
    assert shell.read_until("there").split() == [str(n) for n in range(100001, 200001)]
    assert '"command": "sh -i"' in typed("shell", "list", "--json")[0]
    shell.type("exit 5\n")
    assert shell.process.wait(LIMIT_SECONDS) == 5
    assert typed("shell", "list")[0] == "no shells wait or run\n"
    # What was typed and written is in no log.
    kept = [each for each in server.home.rglob("*") if each.is_file()]
    assert kept
    assert not [each for each in kept if b"th''ere" in each.read_bytes()]


def test_a_cut_connection_goes_on_where_it_was(shell: Terminal, cable: Cable) -> None:
    shell.type("for i in $(seq 60); do echo line $i; sleep 0.1; done; echo d''one\n")
    shell.read_until("line 10\r\n")
    cable.cut()
    shell.type("echo typed mean''while\n")
    threading.Event().wait(4)
    cable.mend()
    lines = shell.read_until("done").replace("echo typed mean''while", "").split("\r\n")
    assert [each for each in lines if each] == [f"line {n}" for n in range(11, 61)]
    shell.read_until("typed meanwhile")
    shell.type("exit 3\n")
    assert shell.process.wait(LIMIT_SECONDS) == 3


def test_a_shell_ends_with_its_client(
    shell: Terminal, server: Running, wait_until: Callable[..., object]
) -> None:
    shell.type("(setsid nohup sleep 600 > log 2>&1; echo no) & echo be''gun\n")
    shell.read_until("begun")
    shell.process.send_signal(signal.SIGHUP)
    assert shell.process.wait(LIMIT_SECONDS) == 128 + signal.SIGHUP
    wait_until(lambda: typed("shell", "list")[0].startswith("no shells"), "its end")
    # The fixture fails where a process is left.


def test_a_killed_server_ends_its_shells(
    shell: Terminal, server: Running, wait_until: Callable[..., object]
) -> None:
    shell.type("echo be''gun\n")
    shell.read_until("begun")
    server.kill()
    server.start()
    shell.read_until("det: the shell ended without its status: no terminal is connected")
    assert shell.process.wait(LIMIT_SECONDS) == 1
    wait_until(lambda: typed("shell", "list")[0].startswith("no shells"), "its end")


def test_a_limit_ends_a_shell_on_a_server(address: str, tmp_path: Path) -> None:
    shell = open_shell("--idle", "0.05", cwd=tmp_path)
    shell.read_until("det: this shell ends: it was idle for 3 seconds, which is its limit")
    assert shell.process.wait(LIMIT_SECONDS) == 124
    shell.close()


def test_an_admin_kills_a_shell_and_does_not_attach(
    shell: Terminal, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.type("echo be''gun\n")
    shell.read_until("begun")
    number = int(typed("shell", "list", "--json")[0].split('"id": ')[1].partition(",")[0])
    sign_in(address, "root", monkeypatch)
    found = SignIns(os.environ).get(address)
    with (
        RemoteTerminal(lambda: RemoteServer(address, found.token), number) as terminal,
        pytest.raises(Refusal, match="only the owner"),
    ):
        terminal.open()
    assert typed("shell", "kill", str(number))[0] == f"shell {number} is asked to end\n"
    shell.read_until("det: this shell ends: its slots are needed, or it was canceled")
    assert shell.process.wait(LIMIT_SECONDS) == 1


def test_typos_of_a_shell_on_a_server_are_said(address: str) -> None:
    assert "needs a terminal" in typed("shell", "--slots", "0")[1]
    assert (
        "no such option '--slosts'; did you mean '--slots'?" in typed("shell", "--slosts", "0")[1]
    )
    assert "no such command" in typed("shell", "lsit")[1]
    assert "no such command" in typed("shell", "kil", "1")[1]
