"""What the page shows a team, asked of the application in this process.

The queue, the usage of slots, and the registry of models.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from det_core.config import to_json
from det_driver.config import load
from det_driver.store import ExperimentSummary, Store, TrialRow
from det_driver.store._experiments import Experiments
from det_driver.store._trials import Trials
from det_web.app import make_router, make_routes

CONFIG = """
name: small
project: digits
workspace: vision
entrypoint: python3 train.py
resources: {slots_per_trial: 2, priority: 20}
hyperparameters: {lr: 0.1}
searcher: {name: random, metric: error, max_length: {batches: 4}, max_trials: 2}
"""
DEVICES = ("cpu:0", "cpu:1")


def make_experiment(home: Path, config: str = CONFIG, *, started: float) -> int:
    """Make an experiment that has begun, without a trial."""
    with Store(home) as store:
        made = store.experiments.create(
            name="small", config=to_json(load(config).config), metric="error", entrypoint="x"
        )
        with store.lock(made.id):
            store.experiments.update(made.id, started=started)
    return made.id


def add_run(home: Path, experiment: int, started: float, ended: float | None, state: str) -> int:
    """Make a trial with one run, and return the trial's number."""
    with Store(home) as store, store.lock(experiment):
        trial = store.trials.create(experiment, experiment * 100 + int(started) % 7, {"lr": 0.1}, 0)
        run = store.runs.begin(trial.id)
        if ended is not None:
            store.runs.end(run.id, state)
        store.trials.update(trial.id, state=state)
        database = store.experiments._databases.held()
        database.run("UPDATE runs SET started = ?, ended = ?", (started, ended))
    return trial.id


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def client(home: Path) -> TestClient:
    return TestClient(make_router(make_routes(home)), base_url="http://127.0.0.1")


def test_queue_and_usage_of_an_empty_home_are_empty(client: TestClient) -> None:
    assert client.get("/api/v1/queue").json() == {"waiting": [], "running": []}
    assert client.get("/api/v1/usage").json()["rows"] == []
    assert client.get("/api/v1/slots").json()["experiments"] == []


def test_an_address_with_a_line_feed_gets_a_sentence(client: TestClient) -> None:
    reply = client.post("/api/v1/experiments/%0A/activate")
    assert (reply.status_code, {*reply.json()}) == (404, {"error"})


def test_list_reads_an_experiment_again_when_it_was_written(
    home: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of hundreds that wait, none has changed when somebody looks."""
    id, other = (make_experiment(home, started=time.time()) for _ in range(2))
    for each in (id, other):
        for file in (home / "experiments" / str(each)).glob("experiment.db*"):
            os.utime(file, (1e9, 1e9))
    read, summary = list[int](), Experiments.summary

    def counted(self: Experiments, id: int) -> ExperimentSummary:
        read.append(id)
        return summary(self, id)

    def names() -> list[str]:
        read.clear()
        columns = client.get("/api/v1/experiments").json()["columns"]
        return sorted(columns["name"])

    monkeypatch.setattr(Experiments, "summary", counted)
    # The lists of a store read an experiment without a driver, too.
    monkeypatch.setattr("det_driver.store._experiments._doubtful", lambda experiment: False)
    assert names() == ["small", "small"]
    assert sorted(read) == [id, other]
    assert names() == ["small", "small"]
    assert read == []
    with Store(home) as store:
        store.experiments.update(other, name="renamed")
    assert names() == ["renamed", "small"]
    assert read == [other]
    # It may be written again within this tick of the clock.
    names()
    assert read == [other]
    # Others are as the index has them, which is seldom more than a second old.
    for _ in range(30):
        make_experiment(home, started=time.time())
    assert names().count("small") == 31
    assert len(read) == 20


def test_list_reads_a_best_trial_once(
    home: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each list would open the database of each experiment that trains."""
    config = CONFIG.replace("lr: 0.1", "lr: {type: double, minval: 0, maxval: 1}")
    id = make_experiment(home, config, started=time.time())
    trials = [add_run(home, id, started, None, "RUNNING") for started in (1, 2)]
    read, get = list[int](), Trials.get

    def counted(self: Trials, id: int) -> TrialRow:
        read.append(id)
        return get(self, id)

    def best(trial: int) -> tuple[int, dict[str, float]]:
        """Have a trial become the best one, and return what two lists say of it."""
        with Store(home) as store, store.lock(id):
            database = store.experiments._databases.held()
            database.run("UPDATE trials SET best_metric = ? WHERE id = ?", (1.0 / trial, trial))
        monkeypatch.setattr(Trials, "get", counted)
        read.clear()
        for name in ("one", "two"):
            with Store(home) as store:
                store.experiments.update(id, name=name)
            columns = client.get("/api/v1/experiments").json()["columns"]
            assert columns["name"] == [name]
        monkeypatch.setattr(Trials, "get", get)
        assert read == [trial]
        return columns["best_trial"][0], columns["best_hparams"][0]

    assert [best(trial) for trial in trials] == [(trial, {"lr": 0.1}) for trial in trials]


def test_queue_lists_what_waits_and_what_holds_slots(home: Path, client: TestClient) -> None:
    first, second = (make_experiment(home, started=time.time()) for _ in range(2))
    with Store(home) as store:
        store.slots.set_share(first, 20, 1.0)
        store.slots.set_share(second, 50, 2.5)
        held = store.slots.lease(first, 2, DEVICES)
        assert held is not None
        assert store.slots.leases(second, 2, DEVICES, count=3) == []
        told = client.get("/api/v1/queue").json()
        store.slots.release(held)
        store.slots.stop_waiting(second)
    ((waits,), (runs,)) = told["waiting"], told["running"]
    assert (waits["experiment"], waits["runs"], waits["slots"]) == (second, 3, 2)
    assert (waits["priority"], waits["rank"], waits["weight"]) == (50, 50, 2.5)
    assert (runs["experiment"], runs["devices"]) == (first, [*DEVICES])
    assert (runs["priority"], runs["needed_by"], runs["name"]) == (20, None, "small")


def test_place_in_the_queue_is_changed_and_kept(home: Path, client: TestClient) -> None:
    id = make_experiment(home, started=time.time())
    address = f"/api/v1/experiments/{id}/queue"
    before = {"priority": 20, "weight": 1.0, "max_slots": None}
    assert client.get(address).json() == before
    assert client.patch(address, json={}).json() == before
    changed = client.patch(address, json={"priority": 7, "max_slots": 4})
    assert changed.json() == {"priority": 7, "weight": 1.0, "max_slots": 4}
    assert client.patch(address, json={"weight": 2.5}).json()["weight"] == 2.5
    assert client.get(address).json() == {"priority": 7, "weight": 2.5, "max_slots": 4}
    # Of what is left out nothing changes, and null is no limit.
    assert client.patch(address, json={"max_slots": None}).json()["max_slots"] is None
    assert client.patch(address, json={"max_slots": 2}).json()["max_slots"] == 2


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"priority": 100}, 400, "priority"),
        ({"weight": 0}, 400, "weight"),
        ({"max_slots": 0}, 400, "max_slots"),
        ({"prioritie": 1}, 400, "prioritie"),
        ({"max_slots": 1}, 409, "slots_per_trial is 2"),
    ],
)
def test_a_place_that_cannot_be_is_refused(
    home: Path, client: TestClient, given: dict[str, float], status: int, said: str
) -> None:
    id = make_experiment(home, started=time.time())
    address = f"/api/v1/experiments/{id}/queue"
    before = client.get(address).json()
    reply = client.patch(address, json=given)
    assert reply.status_code == status
    assert said in reply.json()["error"]
    assert client.get(address).json() == before


def test_usage_counts_the_slot_hours_within_the_time(home: Path, client: TestClient) -> None:
    id = make_experiment(home, started=1000.0)
    add_run(home, id, 1000.0, 1000.0 + 7200, "COMPLETED")

    def rows(query: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = client.get(f"/api/v1/usage?{query}").json()["rows"]
        return found

    (row,) = rows("")
    assert row == {
        "user": None,
        "workspace": "vision",
        "project": "digits",
        "state": "COMPLETED",
        "experiments": 1,
        "slot_hours": 4.0,
    }
    assert rows("since=4600")[0]["slot_hours"] == 2.0
    assert rows("since=1000&until=2800")[0]["slot_hours"] == 1.0
    assert rows("since=8200") == rows("until=1000") == []


def test_run_of_a_dead_driver_counts_to_its_last_report(home: Path, client: TestClient) -> None:
    id = make_experiment(home, started=1000.0)
    trial = add_run(home, id, 1000.0, None, "RUNNING")
    assert client.get("/api/v1/usage").json()["rows"] == []
    with Store(home) as store, store.lock(id):
        database = store.experiments._databases.held()
        database.run(
            "INSERT INTO metrics (trial_id, run_id, kind, batches, time, data)"
            " VALUES (?, 1, 'validation', 4, 2800.0, '{}')",
            (trial,),
        )
    (row,) = client.get("/api/v1/usage").json()["rows"]
    assert row["slot_hours"] == 1.0


def test_a_time_that_is_empty_is_refused(client: TestClient) -> None:
    reply = client.get("/api/v1/usage?since=5&until=5")
    assert (reply.status_code, reply.json()["error"][:9]) == (400, "the time ")


def test_timeline_has_the_average_slots_of_each_step(home: Path, client: TestClient) -> None:
    now = time.time()
    id = make_experiment(home, started=now - 3600)
    add_run(home, id, now - 3600, now - 1800, "COMPLETED")
    told = client.get("/api/v1/slots?hours=1").json()
    (row,) = told["experiments"]
    assert (row["experiment"], row["name"], row["user"]) == (id, "small", None)
    assert told["step"] * len(row["slots"]) == pytest.approx(3600)
    # The request comes a moment after `now`, so only steps within the run are certain.
    assert row["slots"][2:50] == [2.0] * 48
    assert row["slots"][70:] == [0.0] * (len(row["slots"]) - 70)


@pytest.fixture
def saved(home: Path) -> int:
    """An experiment's trial with two checkpoints: one-1, which is complete, and gone-1."""
    id = make_experiment(home, started=1000.0)
    trial = add_run(home, id, 1000.0, 2000.0, "COMPLETED")
    with Store(home) as store, store.lock(id):
        run = store.runs.list(trial)[0].id
        store.metrics.report(trial, run, "validation", 4, {"error": 0.25})
        for batches, uuid in ((4, "one-1"), (5, "gone-1")):
            store.checkpoints.record(uuid, trial, run, batches, storage="{}", size=7)
        store.checkpoints.mark_deleted("gone-1")
    return trial


def test_model_is_made_and_gets_a_version_of_a_checkpoint(saved: int, client: TestClient) -> None:
    assert client.get("/api/v1/models").json() == {"models": []}
    made = client.post("/api/v1/models", json={"name": "digits", "description": "small"})
    assert (made.status_code, made.json()["versions"]) == (201, [])
    given = {"uuid": "one", "aliases": ["production"], "notes": "the first"}
    told = client.post("/api/v1/models/digits/versions", json=given)
    assert told.status_code == 201
    assert told.json() == client.get("/api/v1/models/digits").json()
    assert told.json()["model"]["aliases"] == {"production": 1}
    (version,) = told.json()["versions"]
    assert (version["version"], version["uuid"], version["notes"]) == (1, "one-1", "the first")
    assert (version["trial"], version["batches"], version["metric"]) == (saved, 4, 0.25)
    assert (version["size"], version["state"]) == (7, "COMPLETED")


def test_model_and_version_are_changed_and_deleted(saved: int, client: TestClient) -> None:
    one, version = "/api/v1/models/digits", "/api/v1/models/digits/versions/1"
    client.post("/api/v1/models", json={"name": "digits"})
    client.post(f"{one}/versions", json={"uuid": "one-1"})
    told = client.patch(one, json={"notes": "*seen*", "labels": ["a"], "archived": True}).json()
    assert (told["model"]["notes"], told["model"]["labels"]) == ("*seen*", ["a"])
    assert told["model"]["archived"]
    assert client.patch(one, json={}).json()["model"]["notes"] == "*seen*"
    assert client.patch(version, json={"name": "v"}).json()["versions"][0]["name"] == "v"
    alias = f"{one}/aliases/best%20so%20far"
    assert client.put(alias, json={"version": 1}).json()["model"]["aliases"] == {"best so far": 1}
    # An alias must not point to nothing.
    assert client.delete(version).status_code == 409
    assert client.put(alias, json={"version": None}).json()["model"]["aliases"] == {}
    assert client.delete(version).json()["versions"] == []
    assert client.delete(one).json() == {"models": []}
    assert client.get(one).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "", {"name": "digits"}, 409, "already"),
        ("POST", "", {"name": "a/b"}, 409, "contains"),
        ("POST", "", {"name": 7}, 400, "name"),
        ("PATCH", "/none", {"notes": "x"}, 404, "no model"),
        ("PATCH", "/digits", {"version": 1}, 400, "version"),
        ("POST", "/digits/versions", {"uuid": "gone-1"}, 409, "needs one that is complete"),
        ("POST", "/digits/versions", {"uuid": "nothing"}, 409, "nothing"),
        ("PATCH", "/digits/versions/7", {"name": "x"}, 409, "no version"),
        ("PUT", "/digits/aliases/a", {"version": 7}, 409, "no version"),
        ("PUT", "/digits/aliases/a", {"version": None}, 409, "version"),
        ("DELETE", "/none", None, 404, "no model"),
    ],
)
def test_what_the_registry_refuses_gets_a_sentence(
    saved: int, client: TestClient, method: str, path: str, body: object, status: int, said: str
) -> None:
    client.post("/api/v1/models", json={"name": "digits"})
    before = client.get("/api/v1/models/digits").json()
    reply = client.request(method, f"/api/v1/models{path}", json=body)
    assert (reply.status_code, said in reply.json()["error"]) == (status, True), reply.text
    assert client.get("/api/v1/models/digits").json() == before


ALERTS = """
webhooks:
  - {name: team, url: "http://127.0.0.1:9/secret-path", secret: hush}
"""


def test_alerts_show_no_secret_and_what_is_not_sent(home: Path, client: TestClient) -> None:
    id = make_experiment(home, started=1000.0)
    assert client.get("/api/v1/alerts").json() == {"webhooks": [], "unsent": []}
    (home / "alerts.yaml").write_text(ALERTS)
    (home / "alerts.yaml").chmod(0o600)
    with Store(home) as store, store.lock(id):
        store.alerts.add("x", "gone", "failed", {"title": "it failed"})
        store.alerts.failed(1, "no answer", due=5.0, dead=True)
    told = client.get("/api/v1/alerts")
    assert "secret-path" not in told.text
    assert "hush" not in told.text
    (webhook,), (alert,) = told.json()["webhooks"], told.json()["unsent"]
    assert (webhook["name"], webhook["host"]) == ("team", "http://127.0.0.1")
    assert (alert["experiment"], alert["webhook"], alert["kind"]) == (id, "gone", "failed")
    assert (alert["dead"], alert["attempts"], alert["error"]) == (True, 1, "no answer")


def test_dead_alert_is_tried_again_and_says_why_it_fails(home: Path, client: TestClient) -> None:
    id = make_experiment(home, started=1000.0)
    with Store(home) as store, store.lock(id):
        store.alerts.add("x", "gone", "failed", {"title": "it failed"})
        store.alerts.failed(1, "no answer", due=5.0, dead=True)
        refused = client.post("/api/v1/alerts", json={"experiment": id})
        assert (refused.status_code, "left to the driver" in refused.json()["error"]) == (409, True)
    (left,) = client.post("/api/v1/alerts", json={"experiment": id}).json()["unsent"]
    assert (left["dead"], left["attempts"]) == (True, 1)
    assert left["error"] == "the home has no such webhook"
