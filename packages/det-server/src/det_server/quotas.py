"""Measures how many bytes the users of a server use, and warns before they reach their quotas."""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from det_core.errors import DetError
from det_driver.config import read_alerts
from det_driver.driver import SendingFailed, send_alert
from det_driver.store import AlertRow, CheckpointState, ExperimentRow, Store

from .users import Quota, Users, show_bytes

MEASURE_SECONDS = 60.0
"""The pause between two measurements, at least."""
_SHARE = 20.0
"""The pause is so many times as long as a measurement took, so that disks are mostly left alone."""
WARN_AT = 0.9
_WARN_AGAIN = 0.85
"""Another warning needs the use to be below this part of the quota in between."""


class Quotas:
    """Keeps a figure for each user: what the experiments that they own use.

    These are the files in the directories of the experiments, and their checkpoints wherever these
    are stored. An experiment that has ended is measured again only after it has changed.
    """

    def __init__(self, home: Path, users: Users) -> None:
        self._home = home
        self._users = users
        self._known: dict[tuple[int, float], tuple[object, int]] = {}

    def run(self, stopped: threading.Event) -> None:
        """Measure again and again until `stopped` is set."""
        pause = 0.0
        while not stopped.wait(pause):
            began = time.monotonic()
            # A store that is locked, and experiments that are deleted meanwhile, pass.
            with suppress(DetError, OSError):
                self.measure()
                self.warn()
            pause = max(MEASURE_SECONDS, _SHARE * (time.monotonic() - began))

    def measure(self) -> None:
        """Measure what each user uses, and write it down."""
        owners = self._users.owners()
        used: dict[str, int] = {}
        known: dict[tuple[int, float], tuple[object, int]] = {}
        if Store.is_at(self._home):
            with Store.reader(self._home) as store:
                for summary in store.experiments.list(archived=None, unread={}):
                    found = summary.experiment
                    key = found.id, found.created
                    if (owner := owners.get(key)) is None:
                        continue
                    state = _state(store, found)
                    before = self._known.get(key)
                    same = before is not None and state is not None and before[0] == state
                    size = before[1] if before and same else _measure(store, found.id)
                    known[key] = state, size
                    used[owner] = used.get(owner, 0) + size
        self._known = known
        self._users.set_used(used)

    def warn(self) -> None:
        """Send the alert `quota` for those who use most of their quota, once to each webhook."""
        settings = None
        for quota in self._users.quotas():
            if quota.most is None or quota.used < _WARN_AGAIN * quota.most:
                self._users.forget_warnings(quota.user)
            elif quota.used >= WARN_AT * quota.most:
                settings = settings or read_alerts(self._home)
                warned = self._users.warned(quota.user)
                for webhook in settings.webhooks:
                    is_for_all = webhook.mode == "all" and "quota" in webhook.on
                    if not is_for_all or webhook.name in warned:
                        continue
                    try:
                        send_alert(settings, webhook, _alert(quota, webhook.name))
                    except SendingFailed as failure:
                        sys.stderr.write(
                            f"det server: an alert about the quota of {quota.user} is not sent to"
                            f" webhook {webhook.name!r}: {failure}\n"
                        )
                        if failure.again:
                            continue
                    self._users.note_warning(quota.user, webhook.name)


def _state(store: Store, found: ExperimentRow) -> object:
    """Return a value that changes with an experiment that has ended, or None for another."""
    if not found.state.ended:
        return None
    # The write-ahead log has what is not in the database yet.
    places = [
        store.experiment_dir(found.id) / name for name in ("experiment.db", "experiment.db-wal")
    ]
    return [(each.stat().st_mtime_ns, each.stat().st_size) for each in places if each.exists()]


def _measure(store: Store, id: int) -> int:
    """Return the bytes of an experiment's files and of its checkpoints. 0 if it has just gone."""
    with suppress(DetError):
        checkpoints = sum(
            row.size or 0
            for row in store.checkpoints.list(experiment_id=id)
            if row.state is CheckpointState.COMPLETED
        )
        return checkpoints + _size_below(store.experiment_dir(id))
    return 0


def _size_below(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            # Files come and go. What a link leads to is not counted.
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _alert(quota: Quota, webhook: str) -> AlertRow:
    assert quota.most is not None
    part = quota.used / quota.most if quota.most else 1.0
    content = {
        "title": f"{quota.user} uses {part:.0%} of a quota of {show_bytes(quota.most)}",
        "description": (
            f"{show_bytes(quota.used)} are in use. From 100 % on, {quota.user} starts no experiment"
            " until some are deleted, or checkpoints, or the quota is raised."
        ),
        "user": quota.user,
        "used_bytes": quota.used,
        "quota_bytes": quota.most,
    }
    now = time.time()
    return AlertRow(0, 0, str(uuid.uuid4()), webhook, "quota", content, now, 0, now, 0, None)
