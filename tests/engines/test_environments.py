"""Environments on the nodes of clusters that reach no package index.

What is needed lies in a directory that they see.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from tests.support.clusters.searches import Searches, ended, on_each_engine

pytest.importorskip("det_env")
pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

TRAIN = """
import sys
import time
from importlib.metadata import version
from pathlib import Path
from det_core import core

with core.init() as context:
    Path("SHARED", f"trial-{context.info.trial.trial_id}").write_text(f"{version('six')} {sys.prefix}")
    time.sleep(3)  # so that another trial takes another node
    context.train.report_validation_metrics(1, {"val_loss": 0.5})
"""
SEARCH = """
name: environments
entrypoint: python3 train.py
environment: {{requirements: ["--no-index", "--find-links {wheels}", "six=={version}"]}}
searcher: {{name: random, metric: val_loss, max_trials: 4, max_length: 1, max_concurrent_trials: 2}}
"""


@pytest.fixture
def clustered(request: pytest.FixtureRequest) -> Searches:
    found: Searches = request.getfixturevalue(request.param)
    (found.project.det.cwd / "train.py").write_text(TRAIN.replace("SHARED", str(found.shared)))
    return found


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A directory with what det-core, det-node and the experiment need.

    It is filled as for nodes without an index.
    """
    place = tmp_path / "wheels"
    needed = [*(requires("det-training-core") or []), *(requires("det-node") or [])]
    wanted = [each for each in needed if "extra ==" not in each and not each.startswith("det-")]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary=:all:",
        "-d",
        str(place),
    ]
    subprocess.run([*command, *wanted, "six==1.16.0"], check=True, timeout=200)
    return place


def run(searches: Searches, wheels: Path, version: str, status: int = 0) -> str:
    text = searches.stored(SEARCH.format(wheels=wheels, version=version))
    (searches.project.det.cwd / "search.yaml").write_text(f"{text}engine: {searches.engine()}\n")
    return ended(
        searches.start("run", searches.project.det.cwd / "search.yaml", lease=20.0), status, 300
    )


@on_each_engine()
def test_it_is_made_once_on_each_node_before_a_trial_is_there(
    clustered: Searches, wheels: Path
) -> None:
    run(clustered, wheels, "1.16.0")
    told = [path.read_text().split() for path in sorted(clustered.shared.glob("trial-*"))]
    assert [version for version, _ in told] == ["1.16.0"] * 4
    hidden = str(clustered.project.det.home)
    assert all("/envs/" in place and hidden not in place for _, place in told), (
        told
    )  # which each node has for itself
    logs = list(clustered.project.det.home.glob("experiments/1/agents/environment-*/rank-0.log"))
    nodes = {path.parent.name for path in logs}
    made = [path for path in logs if "making an environment" in path.read_text()]
    assert 1 <= len(made) <= len(nodes)
    clustered.no_job_is_left()


@on_each_engine()
def test_what_nodes_cannot_have_is_said_and_no_trial_is_blamed(
    clustered: Searches, wheels: Path
) -> None:
    """The requirements are solved where the driver is, by wheels that only it sees."""
    hidden = wheels.rename(clustered.project.det.cwd / "wheels")
    said = run(clustered, hidden, "1.16.0", status=2)
    assert said.count("det: the environment cannot be made: ") == 1
    assert str(hidden) in said
    assert "rank-0.log has all" in said
    assert not list(clustered.shared.glob("trial-*"))
