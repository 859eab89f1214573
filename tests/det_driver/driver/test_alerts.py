"""What a driver sends to webhooks, when, and what stays if it cannot."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import smtplib
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.det_driver.driver.test_driver import (  # noqa: F401
    PAUSE,
    SINGLE,
    Play,
    saves,
    says,
    soon,
    store,
    trains,
)
from tests.support.receiver import receiving, receiving_mail

from det_core import Outcome
from det_core.config import parse
from det_core.errors import ConfigError, DetError
from det_driver.config import AlertSettings, Smtp, Webhook, read_alerts
from det_driver.driver import AlertSender, SendingFailed, _alerts, send_alert
from det_driver.driver._alerts import DISK_MARK, find_webhooks
from det_driver.driver._trials import Silence
from det_driver.driver._webhooks import make_request
from det_driver.engines import Ended
from det_driver.store import AlertRow, ExperimentState, Store
from det_node.protocol import Alerted, Finished, Reported

CLOSED = "http://127.0.0.1:9/hook"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a driver that ends wait only for a moment."""
    monkeypatch.setattr(_alerts, "FLUSH_SECONDS", 0.3)


def write(home: Path, *webhooks: dict[str, Any]) -> None:
    text = json.dumps({"webhooks": [{"name": "team", **webhook} for webhook in webhooks]})
    home.joinpath("alerts.yaml").write_text(text)


def row(**content: Any) -> AlertRow:
    return AlertRow(3, 1, "an-id", "team", "failed", content, 100.5, 0, 0.0, 0, None)


def fails(play: Play) -> ExperimentState:
    play.when("start", 1, then=[says(1, 1, Finished(Outcome.MISTAKE, "<no data>")), Ended(1, 1)])
    return play.driver.run()


# Bodies


def test_body_has_the_form_of_determined_and_is_signed() -> None:
    webhook = Webhook(name="team", url=CLOSED, secret="key")
    body, headers = make_request(webhook, row(experiment={"id": 3, "state": "ERROR"}), 1234.5)
    assert json.loads(body) == {
        "event_id": "an-id",
        "event_type": "EXPERIMENT_STATE_CHANGE",
        "timestamp": 100,
        "condition": {"state": "ERROR"},
        "event_data": {"experiment": {"id": 3, "state": "ERROR"}},
    }
    assert headers["X-Determined-AI-Signature-Timestamp"] == "1234"
    signed = hmac.new(b"key", b"1234," + body, hashlib.sha256).hexdigest()
    assert headers["X-Determined-AI-Signature"] == signed


def test_slack_body_is_text_with_its_signs_escaped() -> None:
    webhook = Webhook(name="team", url=CLOSED, type="slack")
    body, headers = make_request(webhook, row(title="It failed", description="a < b & c"), 0.0)
    assert json.loads(body) == {"text": "It failed\na &lt; b &amp; c"}
    assert "X-Determined-AI-Signature" not in headers


# The file


@pytest.mark.parametrize(
    ("webhook", "text"),
    [
        (
            {"url": "ftp://t0k3n/"},
            r"alerts.yaml:1:\d+: webhooks\[0\].url: only http, https and mailto .*",
        ),
        ({"url": "mailto:t0k3n"}, r".*webhooks\[0\].url: no address of mail.*"),
        ({"url": "mailto:t0k3n@h"}, r".*smtp is missing; name the host that sends mail.*"),
        ({"url": "t0k3n"}, r".*webhooks\[0\].url: not an address; give one such as https.*"),
        ({"url": "http://h:99999/t0k3n"}, r".*webhooks\[0\].url: not an address.*"),
        ({"url": "http://me:t0k3n@h/"}, r".*webhooks\[0\].url: names a user.*"),
        ({"url": 7}, r".*webhooks\[0\].url is not what .*give text"),
        ({}, r".*webhooks\[0\].url is missing; give text"),
        (
            {"url": CLOSED, "on": ["ended"]},
            r".*webhooks\[0\].on\[0\] is 'ended'; give one of completed.*",
        ),
        ({"url": CLOSED, "name": "a b"}, r".*webhooks\[0\].name.*"),
        ({"url": CLOSED, "secrets": "t0k3n"}, r".*unknown key.*secret.*"),
    ],
)
def test_mistake_in_the_file_is_placed_and_no_secret_shown(
    tmp_path: Path, webhook: dict[str, Any], text: str
) -> None:
    write(tmp_path, webhook)
    with pytest.raises(ConfigError, match=text) as error:
        read_alerts(tmp_path)
    assert "t0k3n" not in str(error.value)


@pytest.mark.parametrize("value", ["http://h/t0k3n", ["http://h/t0k3n"]])
def test_mistake_in_the_form_of_the_file_shows_no_address(tmp_path: Path, value: Any) -> None:
    (tmp_path / "alerts.yaml").write_text(json.dumps({"webhooks": value}))
    with pytest.raises(ConfigError, match="is not what it takes; give a ") as error:
        read_alerts(tmp_path)
    assert "t0k3n" not in str(error.value)


def test_two_webhooks_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"url": CLOSED}, {"url": CLOSED})
    with pytest.raises(ConfigError, match="webhooks: 2 are called 'team'; give each its own name"):
        read_alerts(tmp_path)


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({}, ["team"]),
        ({"webhook_name": ["mine"]}, ["team", "mine"]),
        ({"exclude": True}, []),
    ],
)
def test_experiment_chooses_its_webhooks(
    tmp_path: Path, chosen: dict[str, Any], names: list[str]
) -> None:
    write(tmp_path, {"url": CLOSED}, {"url": CLOSED, "name": "mine", "mode": "specific"})
    config = parse({"integrations": {"webhooks": chosen}}).config
    assert [webhook.name for webhook in find_webhooks(read_alerts(tmp_path), config)] == names


def test_experiment_that_names_an_unknown_webhook_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"url": CLOSED})
    config = parse({"integrations": {"webhooks": {"webhook_name": ["taem"]}}}).config
    with pytest.raises(DetError, match="has no webhook 'taem'; did you mean 'team'"):
        find_webhooks(read_alerts(tmp_path), config)


# Sending


@pytest.mark.process
def test_end_of_an_experiment_is_sent_after_its_commit(store: Store) -> None:  # noqa: F811
    with receiving() as receiver:
        write(store.home, {"url": receiver.url, "secret": "key"})
        play = Play(store, SINGLE)
        play.when("start", 1, then=trains(1))
        assert play.driver.run() is ExperimentState.COMPLETED
    (body,) = receiver.bodies
    assert body["event_data"]["experiment"]["state"] == "COMPLETED"
    assert body["event_data"]["title"].startswith(f"Experiment {play.id} (x) completed after 0:00:")
    assert store.alerts.list(play.id) == []


@pytest.mark.process
def test_failure_is_sent_again_until_it_is_taken(store: Store) -> None:  # noqa: F811
    with receiving() as receiver:
        receiver.answers = [503]
        write(store.home, {"url": receiver.url, "on": ["failed"]})
        play = Play(store, SINGLE)
        assert fails(play) is ExperimentState.ERROR
    first, second = receiver.bodies
    assert first == second
    assert "<no data>" in first["event_data"]["description"]
    assert store.alerts.list(play.id) == []


@pytest.mark.process
@pytest.mark.parametrize("status", [404, 302])
def test_refused_alert_is_dead_and_redirects_are_not_followed(
    store: Store,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
    status: int,
) -> None:
    with receiving() as elsewhere, receiving() as receiver:
        receiver.answers, receiver.location = [status], elsewhere.url
        write(store.home, {"url": receiver.url})
        play = Play(store, SINGLE)
        fails(play)
    (alert,) = store.alerts.list(play.id)
    assert (alert.dead, alert.attempts, alert.error) == (1, 1, f"HTTP status {status}")
    assert elsewhere.came == []
    printed = capfd.readouterr().err
    assert f"an alert to webhook 'team' is not sent: HTTP status {status};" in printed
    assert "t0k3n" not in printed


@pytest.mark.process
def test_driver_killed_after_its_commit_sends_when_resumed(store: Store) -> None:  # noqa: F811
    """The alert of the first end keeps its id, and is sent besides that of the second."""
    write(store.home, {"url": CLOSED})
    play = Play(store, SINGLE, max_restarts=1)
    play.when("start", 1, then=[says(1, 1, Finished(Outcome.MISTAKE, "no data")), Ended(1, 1)])
    play.killed_at("close")
    (left,) = store.alerts.list(play.id)
    with receiving() as receiver:
        write(store.home, {"url": receiver.url})
        play.driver.run()
    assert [body["event_id"] for body in receiver.bodies].count(left.id) == 1
    assert store.alerts.list(play.id) == []


@pytest.mark.process
@pytest.mark.usefixtures("brief")
def test_unreachable_receiver_does_not_change_an_experiment(
    store: Store,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:
    write(store.home, {"url": CLOSED})
    play = Play(store, SINGLE)
    play.when("start", 1, then=trains(1))
    assert play.driver.run() is ExperimentState.COMPLETED
    (alert,) = store.alerts.list(play.id)
    assert (alert.dead, alert.attempts, alert.error) == (0, 1, "Connection refused")
    assert "alerts that are not sent yet: 1; det alerts retry" in capfd.readouterr().err
    with receiving() as receiver, store.lock(play.id):
        write(store.home, {"url": receiver.url})
        store.alerts.revive()
        assert AlertSender(store, play.id, read_alerts(store.home)).flush(5.0) == 0
    assert [body["event_id"] for body in receiver.bodies] == [alert.id]


# Mail


def test_one_full_receiver_costs_the_others_nothing(store: Store) -> None:  # noqa: F811
    webhooks = [Webhook(name=name, url=CLOSED, on=("alert", "failed")) for name in ("bad", "good")]
    id = store.experiments.create(name="x", config="{}").id
    sender = AlertSender(store, id, AlertSettings())
    with store.lock(id), store.transaction():
        for _ in range(_alerts._MOST_UNSENT):
            sender.add(webhooks[:1], "alert", {"title": "t"})
        sender.add(webhooks, "alert", {"title": "t"})
        sender.add(webhooks, "failed", {})
    found = Counter((each.webhook, each.kind) for each in store.alerts.list(id))
    assert found == {
        ("bad", "alert"): _alerts._MOST_UNSENT,
        ("good", "alert"): 1,
        ("bad", "failed"): 1,
        ("good", "failed"): 1,
    }


def to_mail(port: int, **smtp: Any) -> AlertSettings:
    server = Smtp(host="127.0.0.1", port=port, security="none", sender="det@h", **smtp)
    return AlertSettings(webhooks=(Webhook(name="me", url="mailto:me@h"),), smtp=server)


@pytest.mark.process
def test_mail_has_the_title_as_its_subject_on_one_line() -> None:
    with receiving_mail() as mailbox:
        settings = to_mail(mailbox.port)
        alert = row(title="It failed\r\nBcc: all@h", description="no data")
        send_alert(settings, settings.webhooks[0], alert)
    for line in (
        "rcpt TO:<me@h>",
        "From: det@h",
        "Subject: It failed  Bcc: all@h",
        "Message-ID: <an-id@det>",
        "no data",
    ):
        assert line in mailbox.lines


@pytest.mark.process
@pytest.mark.parametrize(("status", "again"), [("550 unknown", False), ("450 busy", True)])
def test_mail_that_is_refused_for_now_is_tried_again(status: str, again: bool) -> None:
    with receiving_mail() as mailbox:
        mailbox.refused = status
        settings = to_mail(mailbox.port)
        with pytest.raises(SendingFailed, match=f"SMTP status {status[:3]} for") as failure:
            send_alert(settings, settings.webhooks[0], row(title="t", description=""))
    assert failure.value.again is again


def test_mail_over_tls_checks_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts: list[ssl.SSLContext] = []

    def connect(*_: Any, context: ssl.SSLContext, **__: Any) -> None:
        contexts.append(context)
        raise OSError(111, "refused")

    monkeypatch.setattr(smtplib, "SMTP_SSL", connect)
    smtp = Smtp(host="h", security="tls", sender="det@h")
    settings = AlertSettings(webhooks=(Webhook(name="me", url="mailto:me@h"),), smtp=smtp)
    with pytest.raises(SendingFailed):
        send_alert(settings, settings.webhooks[0], row(title="t", description=""))
    assert [(each.verify_mode, each.check_hostname) for each in contexts] == [
        (ssl.CERT_REQUIRED, True)
    ]


def test_password_of_mail_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    smtp = {"host": "h", "sender": "det@h", "security": "none", "password": "t0k3n"}
    (tmp_path / "alerts.yaml").write_text(json.dumps({"smtp": smtp}))
    with pytest.raises(ConfigError, match=r"smtp.security is none; do not send the pass") as error:
        read_alerts(tmp_path)
    assert "t0k3n" not in str(error.value)


# Silence, and alerts of scripts


def test_silence_is_compared_with_the_usual_interval() -> None:
    silence = Silence(began=0.0)
    assert silence.usual is None
    for now in (10.0, 12.0, 17.0):
        silence.end(now)
    assert (silence.usual, silence.began) == (3.5, 17.0)


@pytest.mark.slow
@pytest.mark.usefixtures("soon", "brief")
def test_a_run_that_is_silent_is_reported_once_a_silence(store: Store) -> None:  # noqa: F811
    webhook = {"name": "team", "url": CLOSED, "on": ["stuck"]}
    settings = {"webhooks": [webhook], "stuck_after": 1e-9, "stuck_minutes": 0.01}
    (store.home / "alerts.yaml").write_text(json.dumps(settings))
    play, seen = Play(store, SINGLE), list[int]()

    def look() -> None:
        seen.append(len(store.alerts.list(play.id)))
        time.sleep(0.2)

    def report(number: int) -> Any:
        return says(1, number, Reported("training", number, {}))

    play.when("start", 1, then=[report(1), report(2)])
    play.at_polls(*[[look]] * 8, [report(3), look], *[[look]] * 8, trains(1, first=4))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert sorted(set(seen)) == [0, 1, 2]
    (first, second) = store.alerts.list(play.id)
    assert first.kind == second.kind == "stuck"
    assert first.content["title"].startswith(f"Experiment {play.id} (x): trial 1 has sent nothing")


@pytest.mark.usefixtures("brief")
def test_a_disk_that_is_nearly_full_is_reported_once(store: Store) -> None:  # noqa: F811
    """Once for all experiments of the home, until there was room."""
    webhook = {"name": "team", "url": CLOSED, "on": ["disk"]}

    def run(percent: int) -> list[AlertRow]:
        settings = {"webhooks": [webhook], "disk_free_percent": percent}
        (store.home / "alerts.yaml").write_text(json.dumps(settings))
        play = Play(store, SINGLE)
        play.when("start", 1, then=[play.driver.pause])
        play.when("preempt", 1, PAUSE, then=saves(1, 2))
        play.driver.run()
        return store.alerts.list(play.id)

    reported, *others = [run(percent) for percent in (100, 100, 0, 100)]
    assert [len(each) for each in others] == [0, 0, 1]
    mark = store.home / DISK_MARK
    os.utime(mark, (0, 0))
    with mark.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another driver is about to report it.
        assert run(100) == []
    assert [len(run(100)) for _ in range(2)] == [1, 0]
    (alert,) = reported
    assert alert.kind == "disk"
    assert alert.content["title"].startswith(f"The disk of {store.home} is nearly full: ")
    assert alert.content["free_bytes"] > 0


@pytest.mark.usefixtures("brief")
def test_alert_of_a_script_is_stored_once_for_its_webhooks(store: Store) -> None:  # noqa: F811
    write(store.home, {"url": CLOSED}, {"url": CLOSED, "name": "ends", "on": ["completed"]})
    play = Play(store, SINGLE)
    word = says(1, 1, Alerted("slow", "the disk is full", "warn"))
    play.when("start", 1, then=[word, word, play.driver.pause])
    play.when("preempt", 1, PAUSE, then=saves(1, 2))
    assert play.driver.run() is ExperimentState.PAUSED
    (alert,) = store.alerts.list(play.id)
    assert (alert.webhook, alert.content["title"]) == ("team", "Experiment 1 (x), trial 1: slow")
    body = json.loads(make_request(Webhook(name="team", url=CLOSED), alert, 0.0)[0])
    assert body["event_type"] == "ALERT"
    assert body["event_data"]["custom_data"] == {
        "title": "slow",
        "description": "the disk is full",
        "level": "warn",
    }


def test_damaged_file_stops_no_training_and_is_said(
    store: Store,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:
    store.home.joinpath("alerts.yaml").write_text("webhooks: [")
    play = Play(store, SINGLE)
    play.when("start", 1, then=trains(1))
    assert play.driver.run() is ExperimentState.COMPLETED
    assert "sends no alerts: " in capfd.readouterr().err


def test_alert_for_a_webhook_that_is_gone_is_dead(store: Store) -> None:  # noqa: F811
    play = Play(store, SINGLE)
    with store.lock(play.id):
        store.alerts.add("an-id", "gone", "failed", {})
        AlertSender(store, play.id, read_alerts(store.home)).flush(5.0)
        (alert,) = store.alerts.list(play.id)
    assert (alert.dead, alert.error) == (1, "the home has no such webhook")
