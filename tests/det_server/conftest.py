"""A home with experiments of two users, and the application that serves it, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from argon2 import PasswordHasher
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from det_core.config import to_json
from det_driver.config import load
from det_driver.store import Store
from det_server import Role, Users, create_app
from det_server.submit import routes

CONFIG = """
name: small
entrypoint: python3 train.py
hyperparameters: {lr: 0.1}
searcher: {name: single, metric: error, max_length: {batches: 4}}
"""
PASSWORD = "a long password"
ROLES = {"ann": Role.EDITOR, "bob": Role.EDITOR, "vera": Role.VIEWER, "root": Role.ADMIN}
OF_ANN, OF_BOB, OF_NOBODY = 1, 2, 3
"""The numbers of experiments. The trial of each has the same number."""

Client = Callable[..., TestClient]


def mark_of(experiment: int) -> str:
    """Return a text that the data of one experiment have, and no other."""
    return f"mark{experiment}"


def fill(home: Path) -> Users:
    """Make experiments and users, and return the users."""
    users = Users(home)
    for name, role in ROLES.items():
        users.add(name, role, PASSWORD)
    with Store(home) as store:
        for owner in ("ann", "bob", None):
            made = store.experiments.create(
                name=f"by {owner}",
                config=to_json(load(CONFIG).config),
                metric="error",
                entrypoint="python3 train.py",
            )
            with store.lock(made.id):
                mark = mark_of(made.id)
                store.code_dir(made.id).mkdir()
                (store.code_dir(made.id) / "train.py").write_text(f"# {mark}\n")
                (store.experiment_dir(made.id) / "driver.log").write_text(f"{mark}\n")
                trial = store.trials.create(made.id, 0, {"lr": 0.1, mark: 1}, 0)
                run = store.runs.begin(trial.id)
                for batches in (2, 4):
                    for group in ("training", "validation"):
                        values = {"error": 1 / batches, mark: 1.0}
                        store.metrics.report(trial.id, run.id, group, batches, values)
                run.log_dir.mkdir(parents=True)
                (run.log_dir / "rank-0.log").write_text(f"step {mark}\n")
                store.checkpoints.record(f"{mark}-x", trial.id, run.id, 4, storage="{}", size=1)
                # One whose files were there would be the start of an experiment that runs.
                store.checkpoints.mark_deleted(f"{mark}-x")
                store.runs.end(run.id, "COMPLETED")
                store.experiments.update(made.id, labels=[mark], description=mark)
                store.trials.update(trial.id, state="COMPLETED", ended=2.0)
                store.experiments.update(made.id, state="COMPLETED", started=1.0, ended=2.0)
            if owner:
                users.note_owner(owner, made.id, made.created)
    return users


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash as always, with less work."""
    hasher = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr("det_server.users._HASHER", hasher)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def users(home: Path) -> Users:
    return fill(home)


@pytest.fixture
def client(home: Path, users: Users) -> Client:
    """Make a client, with the API token of a user if one is named."""

    def make(name: str | None = None, **options: bool) -> TestClient:
        app = create_app(home, users, hosts={"det.example"}, port=443, **options)
        given = {"authorization": f"Bearer {users.make_token(name).text}"} if name else {}
        # An error of the server is a reply of status 500, as it is for a client.
        return TestClient(
            app,
            base_url="https://det.example",
            headers=given,
            follow_redirects=False,
            raise_server_exceptions=False,
        )

    return make


@pytest.fixture
def app(home: Path, users: Users) -> ASGIApp:
    """The application with all endpoints of `det server start`."""
    return create_app(home, users, hosts={"det.example"}, port=443, routes=routes(home, {}))
