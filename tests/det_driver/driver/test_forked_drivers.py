"""Drivers that are forks of a server: as good as new interpreters, and they outlive it."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.distributions import lay_out

from det_core.errors import StoreError
from det_driver.config import load
from det_driver.driver import DriverForkServer, create, start_driver
from det_driver.driver._fork_server import _MOST_RESTARTS, SOCKET
from det_driver.store import ExperimentState, Store

pytestmark = pytest.mark.process
# What an observer finds in the process of a driver.
FACTS = """
import gc, json, os, random, resource, sys
from pathlib import Path
from det_core.hooks.hookspecs import hookimpl

def sockets(pid):
    links = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.add(os.readlink(each))
        except OSError:
            pass
    return {link for link in links if link.startswith("socket:")}

class Observer:
    @hookimpl
    def det_experiment_started(self, experiment):
        status = Path("/proc/self/status").read_text()
        found = {
            "argv": sys.argv,
            "environ": dict(os.environ),
            "leader": os.getsid(0) == os.getpgrp() == os.getpid(),
            "gc": [gc.isenabled(), gc.get_threshold()],
            "signals": [line for line in status.splitlines() if line.startswith("Sig")],
            "umask": [line for line in status.splitlines() if line.startswith("Umask")],
            "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
            "streams": [os.readlink(f"/proc/self/fd/{n}") for n in range(3)],
            "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering],
            "shared": sorted(sockets("self") & sockets(os.getppid())),
            "cwd": os.getcwd(),
            "random": random.random(),
            "parent": os.getppid(),
            "forked": "det_driver.cli.fork_server" in sys.orig_argv,
        }
        Path(os.environ["FACTS"]).write_text(json.dumps(found))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    made.mkdir()
    return made


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    site = lay_out(
        tmp_path / "site",
        "det-facts",
        entry_points={"facts": "facts:Observer"},
        modules={"facts": FACTS},
    )
    return {
        **os.environ,
        "PYTHONPATH": str(site),
        "FACTS": str(tmp_path / "facts.json"),
        "DET_SLOTS_TOTAL": "4",
    }


def make(home: Path, command: str = "true") -> int:
    config = {
        "name": "one",
        "entrypoint": command,
        "searcher": {"name": "single", "metric": "loss"},
    }
    with Store(home) as store:
        return create(store, load({**config, "max_restarts": 0}).config, None)


def start(home: Path, id: int, environ: Mapping[str, str]) -> int:
    with Store.reader(home) as store:
        return start_driver(store, home, id, environ)[0]


def wait(home: Path, id: int) -> ExperimentState:
    """Return the state in which an experiment ends."""
    with Store.reader(home) as store:
        while (state := store.experiments.get(id).state) is ExperimentState.ACTIVE:
            time.sleep(0.05)
        while store.experiments.driven(id):
            time.sleep(0.05)
    return state


def facts(home: Path, environ: Mapping[str, str], **variables: str) -> dict[str, Any]:
    """Return what is found in a driver."""
    id = make(home)
    start(home, id, {**environ, **variables})
    assert wait(home, id) is ExperimentState.COMPLETED
    found: dict[str, Any] = json.loads(Path(environ["FACTS"]).read_text())
    # They name the experiment.
    assert found["argv"][1:] == ["resume", str(id)]
    assert found["streams"][1:] == 2 * [str(home / "experiments" / str(id) / "driver.log")]
    assert "trial" in Path(found["streams"][1]).read_text()
    return {**found, "argv": found["argv"][0], "streams": found["streams"][:1]}


def test_a_fork_is_as_good_as_a_new_interpreter(home: Path, environ: dict[str, str]) -> None:
    new = facts(home, environ)
    with DriverForkServer(home, environ):
        first, second = facts(home, environ), facts(home, environ, DET_MORE="yes")
    assert (new["forked"], first["forked"], second["forked"]) == (False, True, True)
    assert len({each["random"] for each in (new, first, second)}) == 3
    assert first["parent"] == second["parent"] != new["parent"]
    assert second["environ"] == {**first["environ"], "DET_MORE": "yes"}
    own = dict.fromkeys(("random", "parent", "forked"))
    assert first | own == new | own


def test_other_variables_need_a_new_interpreter(home: Path, environ: dict[str, str]) -> None:
    with DriverForkServer(home, environ):
        other = facts(home, environ, PYTHONWARNINGS="ignore")
        assert not other["forked"]
        assert other["environ"]["PYTHONWARNINGS"] == "ignore"
        assert facts(home, environ)["forked"]


def test_a_driver_outlives_the_server(home: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    gate = tmp_path / "gate"
    id = make(home, f"sh -c 'until [ -e {gate} ]; do sleep 0.1; done'")
    with DriverForkServer(home, environ):
        pid = start(home, id, environ)
    with Store.reader(home) as store:
        assert store.experiments.get(id).pid == pid
        assert store.experiments.driven(id)
    gate.touch()
    assert wait(home, id) is ExperimentState.COMPLETED


def test_a_killed_server_is_started_again_a_few_times(home: Path, environ: dict[str, str]) -> None:
    with DriverForkServer(home, environ) as server:
        for _ in range(_MOST_RESTARTS):
            end(forking(home, environ))
            server.keep()
        end(forking(home, environ))
        server.keep()
        assert not facts(home, environ)["forked"]


def forking(home: Path, environ: Mapping[str, str]) -> int:
    """Return the process that has forked a driver."""
    found = facts(home, environ)
    assert found["forked"]
    return int(found["parent"])


def end(pid: int) -> None:
    """Kill a child of this process, and wait for its end without taking its status."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_who_asks_a_killed_server_gets_its_driver_later(
    home: Path, environ: dict[str, str]
) -> None:
    with DriverForkServer(home, environ) as server, ThreadPoolExecutor(1) as threads:
        end(forking(home, environ))
        later = threads.submit(facts, home, environ)
        server.keep()
        assert later.result()["forked"]


def test_a_server_that_cannot_be_started_is_tried_again(
    home: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else who asks for a driver would wait for nothing, each time."""
    with DriverForkServer(home, environ) as server:
        end(forking(home, environ))
        with monkeypatch.context() as patched:
            patched.setattr(server, "_start", partial(refuse, "too many processes"))
            with pytest.raises(OSError, match="too many processes"):
                server.keep()
        server.keep()
        assert facts(home, environ)["forked"]


def refuse(why: str) -> None:
    raise OSError(why)


def test_a_socket_of_an_earlier_server_is_replaced(home: Path, environ: dict[str, str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(home / SOCKET))
    assert not facts(home, environ)["forked"]
    with DriverForkServer(home, environ):
        assert stat.S_IMODE((home / SOCKET).stat().st_mode) == 0o600
        assert facts(home, environ)["forked"]
    assert not (home / SOCKET).exists()
    assert not facts(home, environ)["forked"]


def test_a_driver_that_ends_at_once_says_why(home: Path, environ: dict[str, str]) -> None:
    id = make(home)
    with DriverForkServer(home, environ):
        start(home, id, environ)
        assert wait(home, id) is ExperimentState.COMPLETED
        with pytest.raises(
            StoreError, match=r"ended at once, with status 2:\n(.*\n)*det: experiment 1 "
        ):
            start(home, id, environ)
