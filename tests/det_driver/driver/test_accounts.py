"""Runs and checkpoints where code runs as the users of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.other_user import entered_by_all
from tests.support.system_users import make_interpreter, needs_useradd, system_user

from det_core.checkpoint import read_checkpoint
from det_core.errors import DetError, StorageError, StorageUnreachable
from det_core.support.paths import NotRegularFile
from det_driver import accounts
from det_driver.accounts import (
    FILE,
    Account,
    AccountStorage,
    find_account,
    run_as_users,
)
from det_driver.config import load
from det_driver.engines import AccountEngine, EngineContext
from det_driver.engines._links import read_secret
from det_node import wire
from det_node.agent import (
    AgentEvent,
    AgentHello,
    LogChunk,
    LoggedFile,
    RunSpec,
    encode_frame,
)
from det_node.protocol import welcome
from det_testing import EngineSuite

pytestmark = pytest.mark.process
_PYTHON = "DET_TEST_PYTHON"


class Engine(AccountEngine):
    """It starts agents by an interpreter that every user can execute."""

    def python(self) -> tuple[str, ...]:
        return (os.environ[_PYTHON], *super().python()[1:])


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with entered_by_all() as place:
        yield place


@pytest.fixture(scope="module")
def ann(place: Path) -> Iterator[Account]:
    with system_user("det-ann-", place) as made:
        yield find_account(made.name)


@pytest.fixture(scope="module")
def python(place: Path) -> str:
    return str(make_interpreter(place))


@pytest.fixture
def usable(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_PYTHON, python)
    monkeypatch.setattr(sys, "executable", python)


def context_of(ann: Account, directory: Path) -> EngineContext:
    return EngineContext(
        name="det-suite",
        directory=directory / "agents",
        host="127.0.0.1",
        lease=20.0,
        account=ann,
        runs={n: (directory / "logs" / str(n), directory / "events") for n in range(1, 9)},
        devices=("cpu:0",),
    )


@needs_useradd
@pytest.mark.slow
class TestAccount(EngineSuite):
    @pytest.fixture
    def tmp_path(self, place: Path, request: pytest.FixtureRequest) -> Path:
        """Return a directory that the user can write to, as those of the suite's runs do."""
        made = place / request.node.name
        made.mkdir()
        made.chmod(0o777)
        return made

    @pytest.fixture
    def make_engine(self, python: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Engine]:
        monkeypatch.setenv(_PYTHON, python)
        return Engine

    @pytest.fixture
    def context(self, ann: Account, tmp_path: Path) -> EngineContext:
        return context_of(ann, tmp_path)


def test_an_agent_that_lies_writes_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names directories of root as those of its runs, and files that say what to kill."""
    mine = Account("ann", os.getuid(), os.getgid(), (), tmp_path)
    victim = tmp_path / "victim"
    victim.mkdir()
    context = context_of(mine, tmp_path)
    engine = AccountEngine(lambda event: None)
    engine.open(context)
    try:
        key = read_secret(context.directory)
        with wire.connect(engine.links.address, key) as connection:
            lie = {"code_dir": victim, "log_dir": victim, "entrypoint": "x", "trial_class": False}
            variables = {"DET_TENSORBOARD_DIR": str(victim)}
            runs = tuple(
                RunSpec(run_id=n, variables=variables, devices=("cuda:9",), **lie) for n in (1, 77)
            )
            ours = welcome()
            hello = AgentHello(
                protocol=ours.protocol,
                version=ours.version,
                name="x",
                node=0,
                incarnation="1",
                pid=1,
                machine="m",
                runs=runs,
            )
            connection.send(encode_frame(hello))
            connection.recv(timeout=30)
            told: list[AgentEvent] = [
                *(LogChunk(n, "rank-0.log", 0, b"said\n") for n in (1, 77)),
                LogChunk(1, "../../victim/x.log", 0, b"x"),
                LogChunk(1, "process.json", 0, b"{}"),
                LoggedFile(1, "../../victim/x.png", b"x"),
            ]
            connection.send(encode_frame(told))
            log = tmp_path / "logs/1/x.log"
            deadline = time.monotonic() + 30
            while not log.exists():
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert [found.devices for found in engine.links.runs()] == [(), ()]
        assert not list(victim.iterdir())
        assert sorted(os.listdir(tmp_path / "logs/1")) == ["rank-0.log", "x.log"]
        assert (tmp_path / "agents/ended/rank-0.log").read_bytes() == b"said\n"
    finally:
        engine.close()


@needs_useradd
@pytest.mark.slow
def test_a_storage_is_used_with_the_rights_of_its_user(
    ann: Account, usable: None, tmp_path: Path
) -> None:
    config = load({"entrypoint": "python3 train.py"}, complete=False).config
    storage = AccountStorage(ann, config)
    storage.check()
    assert list(storage.list()) == []
    with storage.store("one") as directory:
        (directory / "manifest.json").write_text(json.dumps({"uuid": "one"}))
        (directory / "below").mkdir()
        (directory / "below/file").write_text("content")
    assert (ann.checkpoints / "one" / "below/file").stat().st_uid == ann.uid
    assert (list(storage.list()), storage.exists("one"), storage.exists("two")) == (
        ["one"],
        True,
        False,
    )
    assert set(storage.files("one")) == {"manifest.json", "below/file"}
    assert storage.url("one") == str(ann.checkpoints / "one")
    with storage.restore("one", lambda name: name.startswith("below")) as directory:
        assert (directory / "below/file").read_text() == "content"
        assert not (directory / "manifest.json").exists()
    assert set(storage.delete("one", ("below/*",))) == {"manifest.json"}
    with pytest.raises(StorageError, match="no checkpoint two"), storage.restore("two"):
        pass
    with pytest.raises(StorageError, match="cannot name a checkpoint"):
        storage.files("../one")
    # A pipe is not waited for.
    as_ann: dict[str, Any] = {"user": ann.uid, "group": ann.gid, "extra_groups": ()}
    pipe = ann.checkpoints / "one/pipe"
    subprocess.run(["mkfifo", pipe], check=True, **as_ann)
    began = time.monotonic()
    with pytest.raises((DetError, NotRegularFile)), read_checkpoint(storage, "one"):
        pass
    assert time.monotonic() - began < 60
    assert storage.delete("one") == {}
    # A directory that only root can read.
    (tmp_path / "two").mkdir()
    (tmp_path / "two/manifest.json").write_text(json.dumps({"uuid": "two"}))
    place = {"type": "shared_fs", "host_path": str(tmp_path)}
    hidden = load({"entrypoint": "x", "checkpoint_storage": place}, complete=False).config
    with pytest.raises(StorageError):
        AccountStorage(ann, hidden).files("two")
    with pytest.raises(StorageUnreachable, match="Permission denied"):
        AccountStorage(ann, hidden).check()


@needs_useradd
def test_a_stopped_process_of_a_user_is_not_waited_for(
    ann: Account, usable: None, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    monkeypatch.setattr(accounts, "_SECONDS", 1.0)
    silent = place / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 600\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    config = load({"entrypoint": "python3 train.py"}, complete=False).config
    with pytest.raises(StorageUnreachable, match=r"does not answer|did not say"):
        AccountStorage(ann, config).exists("one")


@needs_useradd
def test_a_home_below_a_users_directory_is_refused(ann: Account, usable: None) -> None:
    home = ann.directory / "home"
    home.mkdir()
    with pytest.raises(DetError, match=f"others than root can change {ann.directory}"):
        run_as_users(home)
    assert not (home / FILE).exists()
    shutil.rmtree(home)
