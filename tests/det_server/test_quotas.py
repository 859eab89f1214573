"""Quotas of users: what is measured, who is warned, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient
from tests.det_server.conftest import CONFIG, OF_ANN, OF_BOB, Client

from det_core.errors import DetError
from det_driver.config import AlertSettings, Webhook
from det_driver.driver import SendingFailed
from det_driver.store import AlertRow, Store
from det_server import Users, create_app
from det_server.command import server
from det_server.quotas import Quotas
from det_server.submit import Submission, Submissions, Uploads, routes

GIB = 2**30


def used(users: Users, name: str) -> int:
    return {each.user: each.used for each in users.quotas()}[name]


def make_checkpoint(home: Path, id: int, size: int, uuid: str = "big") -> None:
    with Store(home) as store, store.lock(id):
        (trial,) = store.trials.list(id)
        (run,) = store.runs.list(trial.id)
        store.checkpoints.record(uuid, trial.id, run.id, 4, storage="{}", size=size)


def test_files_and_checkpoints_of_owners_are_measured(home: Path, users: Users) -> None:
    quotas = Quotas(home, users)
    quotas.measure()
    before = {each.user: each.used for each in users.quotas()}
    assert before["ann"] > 0
    assert before["vera"] == 0
    make_checkpoint(home, OF_ANN, 5 * GIB)
    log = home / "experiments" / str(OF_BOB) / "driver.log"
    log.write_bytes(log.read_bytes() + b"x" * 1000)
    quotas.measure()
    assert 0 <= used(users, "ann") - before["ann"] - 5 * GIB < 2**20
    # An experiment that has ended is not read again until its database changes.
    assert used(users, "bob") == before["bob"]
    Quotas(home, users).measure()
    assert used(users, "bob") == before["bob"] + 1000
    with Store(home) as store, store.lock(OF_ANN):
        store.checkpoints.mark_deleted("big")
    quotas.measure()
    assert used(users, "ann") < GIB
    assert all(each.measured is not None for each in users.quotas())


def test_running_experiments_are_measured_each_time(home: Path, users: Users) -> None:
    quotas = Quotas(home, users)
    with Store(home) as store:
        store.experiments.update(OF_BOB, state="ACTIVE")
    quotas.measure()
    before = used(users, "bob")
    (home / "experiments" / str(OF_BOB) / "more.log").write_bytes(b"x" * 1000)
    quotas.measure()
    assert used(users, "bob") == before + 1000


def test_who_is_over_the_quota_starts_nothing(home: Path, users: Users, client: Client) -> None:
    users.set_quota("ann", 50 * GIB)
    users.set_used({"ann": 51 * GIB, "bob": 51 * GIB})
    app = create_app(home, users, hosts={"det.example"}, port=443, routes=routes(home, {}))
    given = {"authorization": f"Bearer {users.make_token('ann').text}"}
    ann = TestClient(app, base_url="https://det.example", headers=given)
    archive: Any = b"x"
    starts = [
        ("submissions", {"config": CONFIG, "name": "x", "code": "0" * 64, "key": "k"}),
        (f"experiments/{OF_ANN}/fork", {"config": CONFIG}),
        (f"experiments/{OF_ANN}/activate", None),
        (f"experiments/{OF_ANN}/command", {"argv": ["resume", str(OF_ANN), "--detach"]}),
        (f"experiments/{OF_ANN}/changes/activate", []),
        (f"trials/{OF_ANN}/continue", None),
    ]
    for path, body in starts:
        reply = ann.post(f"/api/v1/{path}", content=json.dumps(body).encode() if body else archive)
        assert reply.status_code == 409, (path, reply.text)
        assert reply.json()["error"].startswith("ann uses 51 GiB of a quota of 50 GiB, as measur")
    with Store.reader(home) as store:
        assert len(store.experiments.list()) == 3
    # What runs is ended and changed as before, and others start what is theirs.
    assert ann.patch(f"/api/v1/experiments/{OF_ANN}", json={"name": "x"}).status_code == 200
    users.check_quota("bob")
    users.set_used({"ann": 49 * GIB})
    users.check_quota("ann")
    users.set_used({"ann": 51 * GIB})
    users.set_quota("ann", None)
    users.check_quota("ann")


def test_a_repeated_submission_finds_its_experiment(home: Path, users: Users) -> None:
    """Its first reply may have been lost, and the user has reached the quota since."""
    submissions = Submissions(home, Uploads(home), {})
    submissions._made = {("ann", "k"): OF_ANN}
    users.set_quota("ann", 0)
    given = Submission(config=CONFIG, name="x", code="0" * 64, key="k")

    def check() -> None:
        users.check_quota("ann")

    assert submissions.submit("ann", given, lambda id: None, None, {}, check) == OF_ANN
    other = Submission(config=CONFIG, name="x", code="0" * 64, key="other")
    with pytest.raises(DetError, match="a quota of 0 bytes"):
        submissions.submit("ann", other, lambda id: None, None, {}, check)


def test_a_warning_goes_once_to_each_webhook(
    home: Path, users: Users, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: list[tuple[str, str]] = []
    fails = [True]

    def send(settings: AlertSettings, webhook: Webhook, alert: AlertRow) -> None:
        if webhook.name == "flaky" and fails[0]:
            raise SendingFailed("no answer")
        sent.append((webhook.name, alert.content["title"]))

    monkeypatch.setattr("det_server.quotas.send_alert", send)
    hooks: list[dict[str, Any]] = [{"name": name} for name in ("team", "flaky", "other", "few")]
    hooks[2]["on"], hooks[3]["mode"] = ["failed"], "specific"
    text = json.dumps({"webhooks": [{**each, "url": "https://h/secret"} for each in hooks]})
    (home / "alerts.yaml").write_text(text)
    quotas = Quotas(home, users)
    users.set_quota("ann", 100)

    def warn(bytes: int) -> list[tuple[str, str]]:
        sent.clear()
        users.set_used({"ann": bytes})
        quotas.warn()
        return [*sent]

    title = "ann uses 91% of a quota of 100 bytes"
    assert warn(89) == []
    assert warn(91) == [("team", title)]
    assert "is not sent to webhook 'flaky': no answer" in capsys.readouterr().err
    fails[0] = False
    assert warn(91) == [("flaky", title)]
    assert warn(86) == warn(91) == []
    assert warn(80) == []
    assert [name for name, _ in warn(95)] == ["team", "flaky"]
    users.set_quota("ann", 101)
    assert [name for name, _ in warn(95)] == ["team", "flaky"]


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("50GiB", "has a quota of 50 GiB"),
        ("1.5 TiB", "has a quota of 1.5 TiB"),
        ("1000", "has a quota of 1000 bytes"),
        ("none", "has no quota"),
        (None, "has no quota, and uses 7 bytes (measured "),
        ("50GB", "'50GB' is no size; give bytes, or a size such as 50GiB, or none"),
        ("-1", "No such option"),
        ("9999999PiB", "a quota is 0 to"),
    ],
)
def test_a_quota_is_set_and_shown(home: Path, users: Users, size: str | None, said: str) -> None:
    users.set_used({"ann": 7})
    words = ("server", "user", "quota", "--home", str(home), "ann", *([size] if size else []))
    done = CliRunner().invoke(server, words[1:])
    assert said in f"{done.output}{done.exception}"


def test_a_quota_of_nobody_is_refused(home: Path, users: Users) -> None:
    for words in (["nobody"], ["nobody", "1GiB"]):
        done = CliRunner().invoke(server, ["user", "quota", "--home", str(home), *words])
        assert "no user is called 'nobody'" in str(done.exception)


def test_a_measurement_goes_on_until_it_is_stopped(home: Path, users: Users) -> None:
    class Stopped:
        """Is set at the second look."""

        def __init__(self) -> None:
            self.pauses: list[float] = []

        def wait(self, pause: float) -> bool:
            self.pauses.append(pause)
            return len(self.pauses) > 1

    stopped: Any = Stopped()
    Quotas(home, users).run(stopped)
    assert stopped.pauses[0] == 0
    assert stopped.pauses[1] >= 60
    assert used(users, "ann") > 0
