"""`det alerts`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from det_core.errors import DetError
from det_driver.cli._console import Settings
from det_driver.cli._main import det as command
from det_driver.store import Store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    webhook = {"name": "team", "url": "http://127.0.0.1:9/t0k3n", "secret": "k3y"}
    (tmp_path / "alerts.yaml").write_text(json.dumps({"webhooks": [webhook]}))
    with Store(tmp_path) as store:
        id = store.experiments.create(name="one", config="{}").id
        with store.lock(id):
            store.alerts.add("an-id", "gone", "failed", {"title": "It failed"})
    return tmp_path


def det(home: Path, *words: str) -> Result:
    settings = Settings.read({"DET_HOME": str(home)})
    return CliRunner().invoke(command, words, obj=settings)


def test_list_shows_webhooks_and_alerts_but_no_secret(home: Path) -> None:
    for options in ((), ("--json",)):
        done = det(home, "alerts", "list", *options)
        assert done.exit_code == 0
        assert "http://127.0.0.1" in done.stdout
        assert "failed" in done.stdout
        assert "t0k3n" not in done.stdout
        assert "k3y" not in done.stdout
    found = json.loads(done.stdout)
    assert [alert["webhook"] for alert in found["alerts"]] == ["gone"]


def test_retry_says_why_an_alert_is_still_not_sent(home: Path) -> None:
    done = det(home, "alerts", "retry")
    assert done.exit_code == 1
    assert done.stdout == (
        "experiment 1: 0 sent, 1 left\n  failed to gone: the home has no such webhook\n"
    )


def test_test_says_why_a_webhook_cannot_be_reached(home: Path) -> None:
    done = det(home, "alerts", "test")
    assert (done.exit_code, done.stdout) == (1, "team: not sent: Connection refused\n")


def test_test_of_an_unknown_webhook_names_a_similar_one(home: Path) -> None:
    done = det(home, "alerts", "test", "taem")
    assert isinstance(done.exception, DetError)
    assert str(done.exception) == "no webhook 'taem'; did you mean 'team'?"


def test_test_without_webhooks_says_where_to_write_them(tmp_path: Path) -> None:
    done = det(tmp_path, "alerts", "test")
    assert isinstance(done.exception, DetError)
    assert str(done.exception) == f"{tmp_path}/alerts.yaml has no webhooks; write some"
