"""`det alerts`: lists webhooks and unsent alerts, tries a webhook, and sends what is left."""

from __future__ import annotations

import sys
import time
import uuid

import click
import msgspec

from det_core.errors import DetError, ExperimentBusy, did_you_mean

from ..store import AlertRow
from ._console import EXPERIMENTS, Settings, ago, as_json, print_json
from ._table import print_table

_RETRY_SECONDS = 10.0


@click.group()
def alerts() -> None:
    """List webhooks and alerts that are not sent yet, and send them.

    The webhooks are in alerts.yaml of the home.
    """


@alerts.command("list")
@as_json
@click.pass_obj
def list_(settings: Settings, as_json: bool) -> None:
    """List the webhooks, and the alerts that are not sent yet."""
    from ..config import read_alerts

    webhooks = read_alerts(settings.home).webhooks
    rows: list[AlertRow] = []
    if settings.home.exists():
        with settings.store() as store:
            rows = [row for id in store.alerts.experiments() for row in store.alerts.list(id)]
    if as_json:
        print_json(
            {
                "webhooks": [
                    {"name": w.name, "host": w.host, "type": w.type, "on": w.on, "mode": w.mode}
                    for w in webhooks
                ],
                "alerts": [msgspec.to_builtins(row) for row in rows],
            }
        )
        return
    now = time.time()
    print_table(
        ("webhook", "host", "type", "on", "mode"),
        [(w.name, w.host, w.type, ", ".join(w.on), w.mode) for w in webhooks],
    )
    if rows:
        sys.stdout.write("\n")
        print_table(
            ("experiment", "alert", "webhook", "made", "attempts", "state", "error"),
            [
                (
                    row.experiment_id,
                    row.kind,
                    row.webhook,
                    ago(row.created, now),
                    row.attempts,
                    "dead" if row.dead else "waits",
                    row.error,
                )
                for row in rows
            ],
        )


@alerts.command()
@click.argument("names", metavar="[WEBHOOK]...", nargs=-1)
@click.pass_obj
def test(settings: Settings, names: tuple[str, ...]) -> None:
    """Send a test to each WEBHOOK, by default to all. Exit with 1 if one fails."""
    from ..config import read_alerts
    from ..driver import SendingFailed, send_alert

    configured = read_alerts(settings.home)
    known = {webhook.name: webhook for webhook in configured.webhooks}
    if not known:
        raise DetError(f"{settings.home / 'alerts.yaml'} has no webhooks; write some")
    for name in names:
        if name not in known:
            raise DetError(
                f"no webhook {name!r}{did_you_mean(name, known) or '; det alerts list shows them'}"
            )
    failed = False
    now = time.time()
    content = {"title": "A test of det", "description": "Alerts of experiments come here."}
    for name in names or known:
        row = AlertRow(0, 0, str(uuid.uuid4()), name, "test", content, now, 0, now, 0, None)
        try:
            send_alert(configured, known[name], row)
        except SendingFailed as failure:
            failed = True
            sys.stdout.write(f"{name}: not sent: {failure}\n")
        else:
            sys.stdout.write(f"{name}: sent\n")
    if failed:
        raise SystemExit(1)


@alerts.command()
@click.argument("experiment", type=int, required=False, shell_complete=EXPERIMENTS)
@click.pass_obj
def retry(settings: Settings, experiment: int | None) -> None:
    """Send the alerts of EXPERIMENT, or of all, that are not sent yet. Exit with 1 if some remain.

    Those of an experiment that runs are left to its driver.
    """
    from ..config import read_alerts
    from ..driver import AlertSender

    webhooks = read_alerts(settings.home)
    left = 0
    with settings.store() as store:
        ids = store.alerts.experiments()
        if experiment is not None:
            store.experiments.get(experiment)
            ids = [id for id in ids if id == experiment]
        for id in ids:
            try:
                with store.lock(id):
                    before = len(store.alerts.list(id))
                    store.alerts.revive()
                    AlertSender(store, id, webhooks).flush(_RETRY_SECONDS)
                    unsent = store.alerts.list(id)
            except ExperimentBusy as error:
                sys.stdout.write(f"experiment {id}: left to its driver: {error}\n")
                continue
            left += len(unsent)
            sys.stdout.write(f"experiment {id}: {before - len(unsent)} sent, {len(unsent)} left\n")
            for row in unsent:
                sys.stdout.write(f"  {row.kind} to {row.webhook}: {row.error}\n")
    if not ids:
        sys.stdout.write("nothing is left to send\n")
    if left:
        raise SystemExit(1)
