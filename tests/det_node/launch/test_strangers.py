"""A launcher that somebody else wrote is found and gets the ranks.

It holds its rendezvous as long as they run.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from det_core import DetError, Launcher, LauncherRecord, Layout, Place, Plugins, hookimpl
from det_node.launch._hosts import this_host
from det_node.launch._launch import Launch
from det_node.launch._plan import Plan

pytestmark = pytest.mark.process


class Jax(Launcher):
    """As the guide shows it; notes when its rendezvous is open."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @contextmanager
    def meeting(self, layout: Layout) -> Iterator[list[dict[str, str]]]:
        chief: Place = layout.places[0]
        self.heard.append("open")
        yield [
            {
                "JAX_COORDINATOR": f"{chief.host}:{chief.port}",
                "JAX_PROCESS": f"{place.ranks.rank}/{layout.size}",
            }
            for place in layout.places
        ]
        self.heard.append("closed")


class Wrong(Jax):
    @contextmanager
    def meeting(self, layout: Layout) -> Iterator[list[dict[str, str]]]:
        yield [{}]


@pytest.fixture
def plan(tmp_path: Path):
    def make(code: str) -> Plan:
        argv = [sys.executable, "-c", code]
        return Plan(argv=argv, hosts=this_host(2), environ=dict(os.environ), cwd=tmp_path)

    return make


def test_it_is_looked_up_by_its_name_like_those_of_core(plan):
    launcher = Jax()

    class Plugin:
        @hookimpl
        def det_launchers(self):
            yield LauncherRecord(name="jax", load=lambda: launcher)

    plugins = Plugins.installed()
    plugins.register(Plugin(), "stranger")
    assert sorted(plugins.launchers()) == ["horovod", "jax", "socket", "tensorflow", "torch"]
    out = io.BytesIO()
    code = (
        "import os; print(os.environ['JAX_PROCESS'],"
        " os.environ['JAX_COORDINATOR'].partition(':')[0])"
    )
    assert Launch(plugins.launchers()["jax"].load(), plan(code), out).run() == 0
    assert sorted(out.getvalue().splitlines()) == [
        b"[rank=0] 0/2 127.0.0.1",
        b"[rank=1] 1/2 127.0.0.1",
    ]
    assert launcher.heard == ["open", "closed"]


def test_its_rendezvous_closes_after_a_failure_too(plan):
    launcher = Jax()
    assert Launch(launcher, plan("raise SystemExit(3)"), io.BytesIO()).run() == 3
    assert launcher.heard == ["open", "closed"]


def test_one_that_forgets_a_rank_is_told_so(plan):
    with pytest.raises(DetError, match="the launcher Wrong gives the variables of 1 ranks for 2"):
        Launch(Wrong(), plan("pass"), io.BytesIO()).run()


def test_importing_a_launcher_imports_no_framework():
    code = (
        "import sys\nfrom det_core import Plugins\n[record.load() for record in"
        " Plugins.installed().launchers().values()]\nprint([name for name in ('torch',"
        " 'tensorflow', 'horovod', 'keras', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
