"""What scripts record on other machines is taken up by a server, for its users."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.det_driver.test_recording import same, train
from tests.det_driver.test_syncing import known
from tests.det_server.asgi import HOST, X_DET, ask, sign_in
from tests.det_server.conftest import OF_ANN, PASSWORD
from tests.det_server.test_remote import Running, server

from det_core import core
from det_core.errors import DetError, StoreUnwritable
from det_driver.cli import main
from det_driver.recording import Outgoing, Receiver, _sending, recordings
from det_driver.recording._sending import send_to_server
from det_driver.remote import ERROR_KIND, Refusal, RemoteServer, SignIn, SignIns
from det_driver.store import ExperimentState, Store
from det_server import Users

__all__ = ["server"]
ERROR = core.DefaultConfig(name="mine", hparams={"lr": 0.1}, searcher={"metric": "error"})


class InProcess(RemoteServer):
    """A server in this process, as one of its users reaches it."""

    def __init__(self, app: ASGIApp, users: Users, name: str) -> None:
        super().__init__("https://det.example")
        self._app = app
        self._headers = [HOST, X_DET, *sign_in(users, name)]

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        data = json.dumps(body).encode()
        reply = asyncio.run(ask(self._app, "POST", f"/api/v1{path}", self._headers, data))
        content = json.loads(reply.body)
        if reply.status >= 300:
            kind = reply.headers.get(ERROR_KIND.encode(), b"").decode()
            raise Refusal(reply.status, content["error"], kind)
        return content


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that scripts of this test record into."""
    monkeypatch.setenv("DET_HOME", str(tmp_path / "laptop"))
    monkeypatch.setenv("DET_RECORD", str(tmp_path / "offline"))
    return tmp_path / "offline"


Send = Callable[..., Outgoing]


@pytest.fixture
def send(app: ASGIApp, users: Users, offline: Path) -> Send:
    """Send the first recording as a user, and return how far it is."""

    def send_as(name: str, *, is_alive: bool = False) -> Outgoing:
        (id,) = recordings(offline)
        outgoing = Outgoing(offline, id, send_to_server(InProcess(app, users, name)))
        with Store.reader(offline) as store:
            while outgoing.step(store, is_alive=is_alive, counts=True):
                pass
        return outgoing

    return send_as


def test_recording_is_an_experiment_of_its_user(
    offline: Path, home: Path, users: Users, send: Send
) -> None:
    with core.init(defaults=ERROR, unmanaged=same()) as context:
        train(context, 1, 5)
    id = send("ann").experiment
    assert known(home, id) == known(offline)
    with Store.reader(home) as store:
        experiment = store.experiments.get(id)
        assert experiment.engine == "outside"
        assert experiment.state is ExperimentState.COMPLETED
        assert not store.experiments.driven(id)
    assert users.owner(id, experiment.created) == "ann"
    again = send("ann")
    assert (again.experiment, again.sent.reports) == (id, 0)


def test_script_that_is_alive_is_shown_as_running(offline: Path, home: Path, send: Send) -> None:
    with core.init(defaults=ERROR) as context:
        train(context, 1, 2)
        id = send("ann", is_alive=True).experiment
        with Store.reader(home) as store:
            assert store.experiments.driven(id)
            assert not store.experiments.orphaned(store.experiments.get(id))
        train(context, 3, 4)
        # Another process sends the same, or the server was restarted.
        assert send("ann", is_alive=True).sent.reports == 3
    send("ann")
    assert known(home, id) == known(offline)


def test_identifiers_are_of_one_user(
    offline: Path, home: Path, users: Users, app: ASGIApp, send: Send
) -> None:
    """Two users may give their experiments the same identifier."""
    with core.init(unmanaged=same()) as context:
        train(context, 1, 2)
    of_ann = send("ann").experiment
    with pytest.raises(Refusal, match=f"is experiment {of_ann} already, which is not yours"):
        send("bob")
    offline.rename(offline.with_name("first"))
    with core.init(unmanaged=same()) as context:
        train(context, 3, 4)
    of_bob = send("bob").experiment
    assert of_bob != of_ann
    with Store.reader(home) as store:
        created = store.experiments.get(of_bob).created
    assert users.owner(of_bob, created) == "bob"


def test_trial_continues_from_another_machine(
    offline: Path, app: ASGIApp, users: Users, send: Send
) -> None:
    with core.init(unmanaged=same()) as context:
        train(context, 1, 5)
    id = send("ann").experiment
    offline.rename(offline.with_name("first"))
    with core.init(unmanaged=same()) as context:
        take = send_to_server(InProcess(app, users, "ann"))
        with Store.reader(offline) as store:
            outgoing = Outgoing(offline, 1, take, trial="a")
            outgoing.step(store)
            assert outgoing.latest is not None
            assert outgoing.latest[1] == 5
            train(context, 6, 8)
    assert send("ann").experiment == id


def test_viewer_and_one_over_quota_record_nothing(
    offline: Path, home: Path, users: Users, send: Send
) -> None:
    with core.init():
        pass
    with pytest.raises(Refusal, match="vera is a viewer"):
        send("vera")
    users.set_quota("ann", 10)
    users.set_used({"ann": 11})
    with pytest.raises(Refusal, match="quota"):
        send("ann")
    with Store.reader(home) as store:
        assert len(store.experiments.list(archived=None)) == 3


def test_full_disk_of_the_server_is_tried_again(
    offline: Path, home: Path, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Receiver, *given: object) -> None:
        raise StoreUnwritable("the disk is full")

    with core.init(defaults=ERROR) as context:
        train(context, 1, 5)
    with monkeypatch.context() as patched:
        patched.setattr(Receiver, "take", fail)
        with pytest.raises(Refusal, match="the disk is full") as caught:
            send("ann")
    assert caught.value.status == 507
    id = send("ann").experiment
    assert known(home, id) == known(offline)


def test_older_server_says_that_it_is_to_be_upgraded(
    offline: Path, home: Path, users: Users, client: Any
) -> None:
    from det_server import create_app

    old = create_app(home, users, hosts={"det.example"}, port=443)
    with core.init():
        pass
    for name in ("ann", "root"):
        outgoing = Outgoing(offline, 1, send_to_server(InProcess(old, users, name)))
        with (
            Store.reader(offline) as store,
            pytest.raises(DetError, match="takes up no recordings yet; upgrade it"),
        ):
            outgoing.step(store)


def test_recording_in_the_home_of_the_server_is_not_copied(
    home: Path, users: Users, app: ASGIApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_HOME", str(home))
    monkeypatch.setenv("DET_RECORD", "1")
    with core.init() as context, Store.reader(home) as store:
        context.train.report_training_metrics(1, {"x": 1.0})
        (id,) = recordings(home)
        outgoing = Outgoing(home, id, send_to_server(InProcess(app, users, "ann")))
        assert not outgoing.step(store)
        assert (outgoing.is_here, outgoing.experiment) == (True, id)
        assert users.owner(id, store.experiments.get(id).created) == "ann"
        assert id > OF_ANN


@pytest.mark.parametrize("is_signed_in", [True, False])
def test_script_goes_on_where_nothing_can_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, is_signed_in: bool
) -> None:
    address = "http://127.0.0.1:1"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DET_MASTER", address)
    monkeypatch.setenv("DET_HOME", str(tmp_path / "laptop"))
    monkeypatch.setenv("DET_RECORD", "1")
    monkeypatch.setattr(_sending, "_FINISH_SECONDS", 0.1)
    if is_signed_in:
        SignIns(os.environ).add(address, SignIn("ann", "token", time.time() + 1e6))
    with core.init(defaults=ERROR) as context:
        train(context, 1, 5)
    err = capsys.readouterr().err
    home = tmp_path / "laptop"
    if is_signed_in:
        assert f"experiment 1 of {home}, and is sent to {address}\n" in err
        assert "cannot reach http://127.0.0.1:1: " in err
        assert f"not everything was sent to {address}; send the rest: det -m" in err
    else:
        assert err.count("\n") == 1
        assert f"; nothing is sent to {address}: you are not signed in to" in err
        assert "after that, send it: det sync 1" in err
    assert len(reports(home, 1)) == 6


@pytest.fixture
def signed_in(
    app: ASGIApp, users: Users, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> InProcess:
    """Have scripts of this process send to a server in this process."""
    address = "https://det.example"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DET_MASTER", address)
    monkeypatch.setenv("DET_HOME", str(tmp_path / "laptop"))
    monkeypatch.setenv("DET_RECORD", "1")
    SignIns(os.environ).add(address, SignIn("ann", "token", time.time() + 1e6))
    reached = InProcess(app, users, "ann")
    monkeypatch.setattr(_sending, "RemoteServer", lambda *given, **options: reached)
    return reached


def test_script_sends_while_it_trains(
    signed_in: InProcess, home: Path, tmp_path: Path, capsys: Any
) -> None:
    with core.init(defaults=ERROR, unmanaged=same()) as context:
        train(context, 1, 5)
        wait_until(lambda: accepted(home) == 4 and len(reports(home, 4)) == 6)
        with Store.reader(home) as store:
            assert store.experiments.driven(4)
        train(context, 6, 9)
    assert known(home, 4) == known(tmp_path / "laptop")
    with Store.reader(home) as store:
        assert not store.experiments.driven(4)
    err = capsys.readouterr().err
    assert "this run is experiment 4 of https://det.example: det show 4\n" in err
    assert "not everything" not in err


def test_script_begins_where_another_machine_has_stopped(
    signed_in: InProcess, home: Path, tmp_path: Path
) -> None:
    laptop = tmp_path / "laptop"
    for first, machine in ((1, "one"), (6, "two"), (9, "one"), (12, "one")):
        if (tmp_path / machine).exists():
            (tmp_path / machine).rename(laptop)
        with core.init(unmanaged=same()) as context:
            assert context.info is not None
            assert context.info.steps_completed == {1: 0, 6: 5, 9: 8, 12: 11}[first]
            train(context, first, {1: 5}.get(first, first + 2))
        laptop.rename(tmp_path / machine)
    assert [at for group, at, _ in reports(home, 4) if group == "training"] == [*range(1, 15)]


def test_script_whose_user_is_removed_trains_on(
    signed_in: InProcess, home: Path, users: Users, tmp_path: Path, capsys: Any
) -> None:
    with core.init() as context:
        wait_until(lambda: accepted(home) == 4)
        users.remove("ann")
        train(context, 1, 5)
    assert len(reports(tmp_path / "laptop", 1)) == 6
    err = capsys.readouterr().err
    assert err.count("no more is sent to https://det.example: sign in first") == 1
    assert "send it later: det -m https://det.example sync 1\n" in err


# With a server in a process of its own

SCRIPT = """
import sys, time
from det_core import core

ids = core.UnmanagedConfig(external_experiment_id="exp", external_trial_id="a")
with core.init(unmanaged=ids) as context:
    first = context.info.steps_completed
    for batch in range(first + 1, first + 31):
        context.train.report_training_metrics(batch, {"loss": 1.0})
        print("at", batch, flush=True)
        time.sleep(0.05)
        if batch % 10 == 0:
            with context.checkpoint.store_path({"steps_completed": batch}) as (path, uuid):
                (path / "state").write_text("x")
            print("saved", batch, flush=True)
            if batch == 10:
                sys.stdin.readline()
"""


class Laptop:
    """A user on another machine, with a home of their own, signed in to a server."""

    def __init__(self, place: Path, address: str, token: str) -> None:
        self.home = place / "laptop"
        self.place = place
        self.environ = {
            **os.environ,
            "XDG_CONFIG_HOME": str(place / "config"),
            "DET_HOME": str(self.home),
            "DET_MASTER": address,
            "DET_RECORD": "1",
        }
        SignIns(self.environ).add(address, SignIn("ann", token, time.time() + 1e6))
        (place / "train.py").write_text(SCRIPT)

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=self.place,
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def det(self, *words: str) -> str:
        argv = [sys.executable, "-P", "-m", "det_driver.cli", *words]
        done = subprocess.run(argv, env=self.environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def laptop(server: Running, tmp_path: Path) -> Laptop:
    token = Users(server.home).sign_in("ann", PASSWORD)
    assert token is not None
    return Laptop(tmp_path, server.address, token.text)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def reports(home: Path, id: int) -> list[tuple[str, int, float]]:
    with Store.reader(home) as store:
        return [
            (each.group, each.batches, each.time)
            for trial in store.trials.list(id)
            for each in store.metrics.read(trial_id=trial.id)
        ]


def accepted(home: Path) -> int:
    with Store.reader(home) as store:
        return len(store.experiments.list(archived=None))


@pytest.mark.process
@pytest.mark.slow
def test_server_is_killed_while_a_script_records(server: Running, laptop: Laptop) -> None:
    with laptop.start() as script:
        assert script.stdout is not None
        wait_until(lambda: accepted(server.home) == 4 and bool(reports(server.home, 4)))
        server.kill()
        with Store.reader(server.home) as store:
            assert store.experiments.orphaned(store.experiments.get(4))
        assert script.stderr is not None
        noticed = ""
        while "what is recorded is sent as soon as possible" not in noticed:
            line = script.stderr.readline()
            assert line, noticed
            noticed += line
        while script.stdout.readline() != "saved 10\n":
            assert script.poll() is None
        server.start()
        wait_until(lambda: len(reports(server.home, 4)) >= 10)
        with Store.reader(server.home) as store:
            wait_until(lambda: store.experiments.driven(4))
        _, err = script.communicate("\n", timeout=60)
    err = noticed + err
    assert script.returncode == 0, err
    assert f"is sent to {server.address}" in err
    assert f"this run is experiment 4 of {server.address}: det show 4" in err
    assert known(server.home, 4) == known(laptop.home)
    assert [at for _, at, _ in reports(server.home, 4)] == [*range(1, 31)]
    assert "COMPLETED" in laptop.det("show", "4")
    assert "is experiment 4 of" in laptop.det("sync")


@pytest.mark.process
@pytest.mark.slow
def test_killed_script_continues_on_the_server(server: Running, laptop: Laptop) -> None:
    with laptop.start() as script:
        assert script.stdout is not None
        while script.stdout.readline() != "saved 10\n":
            assert script.poll() is None
        script.send_signal(signal.SIGKILL)
    server.kill()
    # It begins without the server, and goes on where it was.
    with laptop.start() as script:
        _, err = script.communicate("\n", timeout=60)
    assert script.returncode == 0, err
    assert "cannot reach" in err
    assert f"send the rest: det -m {server.address} sync 1" in err
    server.start()
    laptop.det("sync")
    assert known(server.home, 4) == known(laptop.home)
    assert [at for _, at, _ in reports(server.home, 4)] == [*range(1, 41)]


def test_sync_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("DET_HOME", str(tmp_path / "laptop"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def refused(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        assert ended.value.code == 2
        err: str = capsys.readouterr().err
        assert err.count("\n") == 1
        return err

    (tmp_path / "empty").mkdir()
    assert "which recordings?" in refused("sync")
    assert "is no directory, and no number" in refused("sync", "nowhere")
    assert "has no recordings; give" in refused("sync", str(tmp_path / "empty"))
    assert "is in the home" in refused("sync", "3")
    assert "--to is 'hom'" in refused("sync", "--to", "hom", "3")
    address = "http://127.0.0.1:1"
    assert "you are not signed in to" in refused("sync", "--to", address, "3")
