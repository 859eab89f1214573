"""/api/v1/alerts: the webhooks of the home, and the alerts that are not sent yet."""

from __future__ import annotations

from msgspec import Struct

from det_core.errors import ExperimentBusy
from det_driver.config import read_alerts
from det_driver.driver import AlertSender
from det_driver.store import Store

from .endpoints import ApiRequest, Endpoint, Refused
from .shapes import Id

_RETRY_SECONDS = 10.0


class WebhookInfo(Struct):
    """A webhook of alerts.yaml, without its address, which is a secret. `on` are the alerts."""

    name: str
    host: str
    type: str
    on: tuple[str, ...]
    mode: str


class Unsent(Struct):
    """An alert to one webhook that is not sent yet. A dead one is not tried again by itself.

    `due` is when it is tried next, and `error` says why the last attempt failed.
    """

    experiment: int
    webhook: str
    kind: str
    created: float
    attempts: int
    due: float
    dead: bool
    error: str | None


class Alerts(Struct):
    """The webhooks, and the alerts that are not sent yet, by experiment, the oldest first."""

    webhooks: list[WebhookInfo]
    unsent: list[Unsent]


class Retry(Struct, forbid_unknown_fields=True):
    """The experiment whose alerts to send again."""

    experiment: Id


def alerts(asked: ApiRequest) -> Alerts:
    """Return the webhooks, and the alerts that are not sent yet. On a server only for admins."""
    webhooks = [
        WebhookInfo(each.name, each.host, str(each.type), tuple(map(str, each.on)), str(each.mode))
        for each in read_alerts(asked.home).webhooks
    ]
    if not Store.is_at(asked.home):
        return Alerts(webhooks, [])
    with asked.store() as store:
        rows = [row for id in store.alerts.experiments() for row in store.alerts.list(id)]
    unsent = [
        Unsent(
            *(row.experiment_id, row.webhook, row.kind, row.created, row.attempts, row.due),
            *(bool(row.dead), row.error),
        )
        for row in rows
    ]
    return Alerts(webhooks, unsent)


def retry(asked: ApiRequest) -> Alerts:
    """Send the unsent alerts of an experiment again, dead ones too. Return those that are left.

    Those of an experiment that runs are left to its driver.
    """
    id, settings = asked.body.experiment, read_alerts(asked.home)
    with Store(asked.home, visible=asked.visible) as store:
        try:
            with store.lock(id):
                store.alerts.revive()
                AlertSender(store, id, settings).flush(_RETRY_SECONDS)
        except ExperimentBusy as error:
            raise Refused(409, f"the alerts are left to the driver: {error}") from error
    return alerts(asked)


ENDPOINTS = (
    Endpoint(method="GET", path="/alerts", does=alerts, response=Alerts),
    Endpoint(method="POST", path="/alerts", does=retry, response=Alerts, body=Retry),
)
"""The endpoints about alerts."""
