"""Three users of one `det server` share a cluster whose own queue decides what starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.clusters.searches import Searches, SlurmSearches, on_each_engine

from det_driver.store import Store
from det_server import Role, Users

PASSWORD = "correct horse battery staple"
NAMES = ("ann", "bob", "eve")
PORT = "8080"
pytestmark = [pytest.mark.process, pytest.mark.timeout(420)]


@dataclass
class Team:
    """A server on the cluster's first host, and users whose laptops know its address alone."""

    searches: Searches
    users: Users
    place: Path

    def det(self, name: str, *words: str | Path, given: str = "") -> str:
        """Return what a command prints on a user's laptop."""
        argv = [sys.executable, "-P", "-m", "det_driver.cli", *map(str, words)]
        clean = {key: each for key, each in os.environ.items() if not key.startswith("DET_")}
        done = subprocess.run(
            self.searches.cluster.argv(argv),
            env={**clean, "HOME": str(self.place), "XDG_CONFIG_HOME": str(self.place / name)},
            cwd=self.place,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def team(clustered: Searches, tmp_path: Path) -> Iterator[Team]:
    home = clustered.project.det.home
    home.mkdir(exist_ok=True)
    users = Users(home)
    for name in NAMES:
        users.add(name, Role.EDITOR, PASSWORD)
    server = clustered.start("server", "start", "--port", PORT)
    assert server.stdout is not None
    while "is at" not in (line := server.stdout.readline()):
        assert line, "the server has ended"
    (place := tmp_path / "laptops").mkdir()
    found = Team(clustered, users, place)
    for name in NAMES:
        login = ("login", f"http://127.0.0.1:{PORT}", "--user", name, "--password-stdin")
        found.det(name, *login, given=f"{PASSWORD}\n")
    yield found
    server.terminate()
    server.communicate(timeout=60)


@on_each_engine()
def test_three_users_train_on_a_cluster_through_a_server(
    team: Team, clustered: Searches, wait_until: Callable[..., None]
) -> None:
    """With the numbers of a search on this machine, and as whom they signed in."""
    if isinstance(clustered, SlurmSearches):
        team.users.set_preferences("eve", {"slurm.partition": "high"})
    text = clustered.search(2, 20) + f"engine: {json.dumps(clustered.engine())}\n"
    config = clustered.project.write(text)
    code = config.with_name("model_def.py")
    for name in NAMES:
        (own := team.place / f"of-{name}").mkdir()
        for file in (config, code):
            (own / file.name).write_text(file.read_text())
        printed = team.det(name, "run", own / config.name, "--detach")
        assert "runs on http://127.0.0.1:8080" in printed
    partitions = set[str]()

    def are_over() -> bool:
        if isinstance(clustered, SlurmSearches):
            listed = clustered.cluster.run("squeue", "-h", "-t", "all", "-o", "%j|%P").split()
            partitions.update(each for each in listed if each.startswith("det-"))
        listed = json.loads(team.det("ann", "list", "--json"))
        states = {row["experiment"]["state"] for row in listed}
        assert "ERROR" not in states, [team.det("ann", "show", str(id)) for id in (1, 2, 3)]
        return states == {"COMPLETED"}

    wait_until(are_over, "the end of all experiments", 240)
    clustered.no_job_is_left()
    project = clustered.project
    path = project.write(clustered.search(2, 20), "local.yaml")
    project.det("run", path, "--quiet", env=project.environ(2))
    wanted = project.outcome(len(NAMES) + 1).table
    with Store.reader(project.det.home) as store:
        created = {row.experiment.id: row.experiment.created for row in store.experiments.list()}
    owners = team.users.owners()
    for id, name in enumerate(NAMES, 1):
        assert project.outcome(id).table == wanted, team.det(name, "show", str(id))
        assert owners[id, created[id]] == name
        if isinstance(clustered, SlurmSearches):
            own = {each.partition("|")[2] for each in partitions if f"-{id}-" in each}
            assert own == {"high" if name == "eve" else "low"}
