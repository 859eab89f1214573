"""Alerts of an experiment: written with what they report, and sent after the commit.

Each attempt has a thread of its own, so that no receiver delays the driver. The driver's thread
starts the attempts and records how they ended, as it alone writes the store.
"""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from det_core.config import ExperimentConfig
from det_core.errors import DetError, did_you_mean
from det_core.support.threads import start_thread
from det_node.launch import say

from ..config import ALERTS, AlertKind, AlertSettings, Webhook, read_alerts
from ..store import AlertRow, ExperimentState, Store
from ._trials import LiveTrial, Silence
from ._webhooks import SendingFailed, send_alert

ATTEMPTS = 10
FLUSH_SECONDS = 10.0
"""How many seconds a driver that ends waits for its alerts to be sent."""
DISK_MARK = "disk-alert"
"""The file in a home that says that its disk was reported, until there is room again."""
_DISK_SECONDS = 60.0
_DISK_AGAIN_SECONDS = 86400.0
_ATTEMPT_SECONDS = 40.0
_LONGEST_PAUSE = 300.0
_MOST_UNSENT = 200
_FIRST_SECONDS = 3600.0


class _Ended(NamedTuple):
    """How an attempt ended. `failure` is None where the alert is sent."""

    webhook: str
    number: int
    failure: SendingFailed | None


class _Attempt(NamedTuple):
    """An attempt in its thread."""

    number: int
    alert: AlertRow
    until: float


class AlertSender:
    """Sends the alerts of the experiment whose lock the store holds, each at least once.

    An attempt that fails is repeated after 1 s, 2 s, 4 s, and so on up to 5 minutes. After ten
    attempts, or where the receiver refuses the alert, it is dead until `det alerts retry`.
    """

    def __init__(self, store: Store, experiment_id: int, settings: AlertSettings) -> None:
        self._store, self._id = store, experiment_id
        self._settings = settings
        self._webhooks = {webhook.name: webhook for webhook in settings.webhooks}
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        # At most one attempt for each webhook.
        self._attempts: dict[str, _Attempt] = {}
        self._number = 0
        # None: read them from the store first.
        self._unsent: list[AlertRow] | None = None

    def add(self, webhooks: Sequence[Webhook], kind: AlertKind, content: dict[str, Any]) -> None:
        """Add an alert for the webhooks that are sent its kind, in the open transaction."""
        wanted = [webhook for webhook in webhooks if kind in webhook.on]
        if kind == "alert" and wanted:
            # One receiver that fails costs the others nothing, and no state of the experiment.
            unsent = Counter(row.webhook for row in self._store.alerts.list(self._id))
            full = [each.name for each in wanted if unsent[each.name] >= _MOST_UNSENT]
            wanted = [each for each in wanted if each.name not in full]
            if full:
                say(
                    f"experiment {self._id} has {_MOST_UNSENT} alerts that are not sent to"
                    f" {', '.join(full)}, and makes no more; det alerts list says why"
                )
        if not wanted:
            return
        id = str(uuid.uuid4())
        for webhook in wanted:
            self._store.alerts.add(id, webhook.name, kind, content)
        self._unsent = None

    def poll(self) -> None:
        """Record the attempts that have ended, and start those that are due."""
        now = time.monotonic()
        while not self._ended.empty():
            ended = self._ended.get()
            attempt = self._attempts.get(ended.webhook)
            # An attempt that was given up has been counted.
            if attempt is not None and attempt.number == ended.number:
                self._record(ended.webhook, ended.failure)
        for name in [name for name, each in self._attempts.items() if each.until < now]:
            self._record(name, SendingFailed(f"no answer within {_ATTEMPT_SECONDS:g} s"))
        for alert in self._read():
            if alert.webhook not in self._attempts and alert.due <= time.time():
                self._start(alert)

    def flush(self, seconds: float) -> int:
        """Send what can be sent within `seconds`. Return how many alerts are not sent."""
        deadline = time.monotonic() + seconds
        while True:
            self.poll()
            left = self._read()
            soon = time.time() + deadline - time.monotonic()
            if not self._attempts and not any(alert.due <= soon for alert in left):
                break
            if time.monotonic() >= deadline:
                break
            time.sleep(0.02)
        return len(left)

    def _read(self) -> list[AlertRow]:
        if self._unsent is None:
            rows = self._store.alerts.list(self._id)
            self._unsent = [row for row in rows if not row.dead]
        return self._unsent

    def _start(self, alert: AlertRow) -> None:
        self._number += 1
        until = time.monotonic() + _ATTEMPT_SECONDS
        self._attempts[alert.webhook] = _Attempt(self._number, alert, until)
        ended = partial(_Ended, alert.webhook, self._number)
        if (webhook := self._webhooks.get(alert.webhook)) is None:
            self._ended.put(ended(SendingFailed("the home has no such webhook", again=False)))
            return
        try:
            start_thread(self._send, webhook, alert, ended, name=f"det-alert-{webhook.name}")
        except OSError as error:
            self._ended.put(ended(SendingFailed(error.strerror or "no thread")))

    def _send(self, webhook: Webhook, alert: AlertRow, ended: partial[_Ended]) -> None:
        try:
            send_alert(self._settings, webhook, alert)
        except SendingFailed as failure:
            self._ended.put(ended(failure))
        except Exception as error:
            # The traceback is left out, as it might quote the address.
            self._ended.put(ended(SendingFailed(type(error).__name__)))
        else:
            self._ended.put(ended(None))

    def _record(self, webhook: str, failure: SendingFailed | None) -> None:
        alert = self._attempts.pop(webhook).alert
        self._unsent = None
        if failure is None:
            self._store.alerts.remove(alert.seq)
            return
        dead = not failure.again or alert.attempts + 1 >= ATTEMPTS
        pause = min(2.0**alert.attempts, _LONGEST_PAUSE)
        self._store.alerts.failed(alert.seq, str(failure), due=time.time() + pause, dead=dead)
        if dead:
            say(
                f"experiment {self._id}: an alert to webhook {webhook!r} is not sent: {failure};"
                " det alerts retry sends it"
            )


def find_webhooks(settings: AlertSettings, config: ExperimentConfig) -> tuple[Webhook, ...]:
    """Return the webhooks that get alerts of an experiment.

    Raises DetError if it names one that does not exist.
    """
    chosen = config.integrations.webhooks if config.integrations else None
    if chosen is not None and chosen.exclude:
        return ()
    wanted = chosen.webhook_name if chosen is not None else ()
    names = [webhook.name for webhook in settings.webhooks]
    for name in wanted:
        if name not in names:
            raise DetError(
                f"integrations.webhooks.webhook_name: {ALERTS} of the home has no webhook"
                f" {name!r}{did_you_mean(name, names) or '; det alerts list shows them'}"
            )
    return tuple(each for each in settings.webhooks if each.mode == "all" or each.name in wanted)


def check_alerts(home: Path, config: ExperimentConfig) -> None:
    """Raise DetError if `alerts.yaml` has mistakes, or lacks a webhook that is named."""
    find_webhooks(read_alerts(home), config)


class ExperimentAlerts:
    """Sends the alerts of one experiment to its webhooks.

    Mistakes in `alerts.yaml` are printed, and nothing is sent: they must not stop the training.
    """

    def __init__(self, store: Store, experiment_id: int) -> None:
        self._store, self._id = store, experiment_id
        self._settings = AlertSettings()
        self._webhooks: tuple[Webhook, ...] = ()
        self._next_disk = 0.0
        try:
            self._settings = read_alerts(store.home)
            config = store.experiments.config(experiment_id)
            self._webhooks = find_webhooks(self._settings, config)
        except DetError as error:
            say(f"experiment {experiment_id} sends no alerts: {error}")
        # Without webhooks, alerts of an earlier driver wait until there are some.
        self._sender = (
            AlertSender(store, experiment_id, self._settings) if self._settings.webhooks else None
        )

    def report_end(self, state: ExperimentState, reason: str | None) -> None:
        """Report the state that the open transaction gives to the experiment.

        A pause is not reported, as it is asked for.
        """
        kind = _KINDS.get(state)
        if self._sender is None or kind is None:
            return
        row = self._store.experiments.get(self._id)
        seconds = (row.ended or time.time()) - (row.started or row.created)
        how = "was canceled" if kind == "canceled" else kind
        experiment = {
            "id": row.id,
            "name": row.name,
            "state": str(state),
            "duration": round(seconds),
            "reason": reason,
        }
        content = {
            "title": f"Experiment {row.id} ({row.name}) {how} after {_duration(seconds)}",
            "description": reason or "",
            "experiment": experiment,
        }
        self._sender.add(self._webhooks, kind, content)

    def report_custom(self, trial: int, title: str, description: str, level: str) -> None:
        """Report an alert of a trial's code, in the open transaction."""
        if self._sender is not None:
            row = self._store.experiments.get(self._id)
            content = {
                "title": f"Experiment {row.id} ({row.name}), trial {trial}: {title or description}",
                "description": description if title else "",
                "experiment_id": row.id,
                "trial_id": trial,
                "custom_data": {"title": title, "description": description, "level": level},
            }
            self._sender.add(self._webhooks, "alert", content)

    def find_stuck(self, running: Iterable[LiveTrial]) -> list[LiveTrial]:
        """Return the trials whose run is silent for too long, which was not reported yet.

        A run whose usual interval is not known, as it has just begun, has an hour.
        """
        if self._sender is None:
            return []
        now = time.monotonic()
        return [
            live
            for live in running
            if (active := live.active) is not None
            and not active.preempting
            and not active.silence.reported
            and now - active.silence.began >= self._patience(active.silence)
        ]

    def _patience(self, silence: Silence) -> float:
        """Return how many seconds a run may be silent."""
        usual = silence.usual
        longest = _FIRST_SECONDS if usual is None else usual * self._settings.stuck_after
        return max(longest, 60 * self._settings.stuck_minutes)

    def report_stuck(self, live: LiveTrial) -> None:
        """Report in the open transaction that a run of `find_stuck` is silent."""
        assert self._sender is not None
        assert live.active is not None
        silence = live.active.silence
        silence.reported = True
        seconds, usual = time.monotonic() - silence.began, silence.usual
        before = "" if usual is None else f"Its usual interval was {usual:.1f} s. "
        row = self._store.experiments.get(self._id)
        content = {
            "title": (
                f"Experiment {row.id} ({row.name}): trial {live.id} has sent nothing for"
                f" {_duration(seconds)}"
            ),
            "description": f"{before}det logs {live.id} shows its output.",
            "experiment_id": row.id,
            "trial_id": live.id,
        }
        self._sender.add(self._webhooks, "stuck", content)

    def find_full_disk(self) -> int | None:
        """Return the free bytes of the home's disk if they are few, and nobody has reported it.

        It is reported once for all experiments of a home, and again after a day.
        """
        now = time.monotonic()
        is_wanted = self._sender is not None and any("disk" in each.on for each in self._webhooks)
        if not is_wanted or now < self._next_disk:
            return None
        self._next_disk = now + _DISK_SECONDS
        mark = self._store.home / DISK_MARK
        # Where there is no room for the mark, the next look is in a minute.
        with suppress(OSError):
            disk = shutil.disk_usage(self._store.home)
            limit = disk.total * self._settings.disk_free_percent / 100
            if disk.free >= limit:
                # Not at each small change around the limit.
                if disk.free >= 1.1 * limit:
                    mark.unlink(missing_ok=True)
                return None
            with os.fdopen(os.open(mark, os.O_CREAT | os.O_RDWR, 0o600), "r+") as file:
                # Of several drivers that look at once, the first reports.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(file.fileno())
                if status.st_size and time.time() - status.st_mtime <= _DISK_AGAIN_SECONDS:
                    return None
                file.write(str(os.getpid()))
            return disk.free
        return None

    def report_full_disk(self, free: int) -> None:
        """Report in the open transaction that the disk of the home has only `free` bytes left."""
        assert self._sender is not None
        content = {
            "title": f"The disk of {self._store.home} is nearly full: {free / 2**30:.1f} GiB free",
            "description": "If it is full, experiments pause. Delete checkpoints, or make room.",
            "free_bytes": free,
        }
        self._sender.add(self._webhooks, "disk", content)

    def poll(self) -> None:
        """Send what is due. Takes no time, as threads send."""
        if self._sender is not None:
            self._sender.poll()

    def flush(self) -> None:
        """Send what can be sent within some seconds, and print what remains."""
        if self._sender is not None and (left := self._sender.flush(FLUSH_SECONDS)):
            say(
                f"experiment {self._id}: alerts that are not sent yet: {left}; det alerts retry"
                " sends them"
            )


_KINDS: dict[ExperimentState, AlertKind] = {
    ExperimentState.COMPLETED: "completed",
    ExperimentState.ERROR: "failed",
    ExperimentState.CANCELED: "canceled",
}


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
