"""`det shell` on a node of a cluster, from a laptop through a server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

import pytest
from tests.engines.test_team import Team, team
from tests.support.clusters.searches import Searches, on_each_engine
from tests.support.terminal import LIMIT_SECONDS, Terminal

__all__ = ["team"]
pytestmark = [pytest.mark.process, pytest.mark.timeout(420)]


@on_each_engine()
def test_a_shell_through_a_server_is_on_a_node(
    team: Team, clustered: Searches, wait_until: Callable[..., None]
) -> None:
    """Its size, its directory, Ctrl-C and its status. No job is left."""
    engine = json.dumps(clustered.engine())
    (clustered.project.det.home / "config.yaml").write_text(f"engine: {engine}\n")
    (code := team.place / "code").mkdir()
    (code / "mine.txt").write_text("of my machine\n")
    argv = [sys.executable, "-P", "-m", "det_driver.cli", "shell", "start", "--code", str(code)]
    clean = {key: each for key, each in os.environ.items() if not key.startswith("DET_")}
    places = {"HOME": str(team.place), "XDG_CONFIG_HOME": str(team.place / "ann")}
    shell = Terminal(
        team.searches.cluster.argv([*argv, "--", "sh"]),
        cwd=team.place,
        env={**clean, **places, "TERM": "xterm-color", "PS1": ""},
    )
    try:
        shell.type("stty size; cat mine.txt; echo o''n $TERM; hostname\n")
        for each in ("30 100", "of my machine", "on xterm-color\r\n"):
            shell.read_until(each)
        assert clustered.machines()
        shell.type("sh -c 'echo be''gun; exec sleep 600'\n")
        shell.read_until("begun")
        shell.type("\x03")
        shell.type("exit 5\n")
        assert shell.process.wait(LIMIT_SECONDS) == 5
    finally:
        shell.close()
    listed = json.loads(team.det("ann", "shell", "list", "--all", "--json"))
    assert [each["state"] for each in listed] == ["COMPLETED"]
    clustered.no_job_is_left()
