"""The driver, as a script sees it: its loss is a request to save and to end."""

from __future__ import annotations

import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ..checkpoint.manifest import Manifest
from ..errors import DetError
from ..train.environ import WorkerEnv
from ..train.host import HostLost, Outcome, Target, TrialHost

_MOST_UNCONFIRMED = 10_000
"""The most reports that are kept until a reply shows that the driver has stored them."""

R = TypeVar("R")
_Report = tuple[str, int, Mapping[str, Any]]


class ScriptHost(TrialHost):
    """A host whose loss raises `preempted`, and no error that would end a script before it saves.

    Reports that the lost driver may not have stored are noted in a file of the spool, and the
    trial's next run sends them. Only `checkpointed` and `deleted` raise HostLost.
    """

    def __init__(self, host: TrialHost, env: WorkerEnv) -> None:
        self.preempted, self.stores = host.preempted, host.stores
        self._host, self._env = host, env
        self._note = env.spool / f"trial-{env.trial_id}.reports"
        self._unconfirmed: deque[_Report] = deque(maxlen=_MOST_UNCONFIRMED)
        self._lost = self._sent_again = False
        # The profiler reports from a thread.
        self._lock = threading.Lock()

    def send_again(self) -> None:
        """Send what an earlier run could not, except for positions that are trained again.

        The note is deleted once a reply shows that the driver has stored them.
        """
        reply = None
        for group, batches, metrics in _read(self._note):
            if batches > self._env.steps_completed:
                continue
            # What the driver refuses now, it refused before.
            with suppress(DetError):
                reply = self._try(partial(self._send, group, batches, metrics), None)
        self._sent_again = True
        if reply is not None:
            self._discard_stored()

    def _send(self, group: str, batches: int, metrics: Mapping[str, Any]) -> Target | None:
        if group == "validation":
            return self._host.validated(batches, metrics, None)
        return self._host.report(group, batches, metrics)

    def target(self) -> Target:
        return self._try(self._host.target, Target(n=None))

    def report(self, group: str, batches: int, metrics: Mapping[str, Any]) -> None:
        self._keep((group, batches, metrics))
        self._try(lambda: self._host.report(group, batches, metrics), None)

    def validated(self, batches: int, metrics: Mapping[str, Any], length: int | None) -> Target:
        self._keep(("validation", batches, metrics))
        return self._request(lambda: self._host.validated(batches, metrics, length))

    def completed(self, batches: int, metrics: Mapping[str, Any], length: int) -> Target:
        # It is not kept: the next run gets the same operation, and completes it.
        return self._request(lambda: self._host.completed(batches, metrics, length))

    def checkpointed(self, manifest: Manifest, storage: str) -> bool | None:
        try:
            recorded = self._host.checkpointed(manifest, storage)
        except HostLost:
            self._handle_loss()
            raise
        self._discard_stored()
        return recorded

    def deleted(self, uuid: str) -> None:
        try:
            self._host.deleted(uuid)
        except HostLost:
            self._handle_loss()
            raise

    def progress(self, fraction: float) -> None:
        self._try(lambda: self._host.progress(fraction), None)

    def status(self, text: str) -> None:
        self._try(lambda: self._host.status(text), None)

    def notice(self, text: str) -> None:
        self._try(lambda: self._host.notice(text), None)

    def alert(self, title: str, description: str, level: str) -> None:
        self._try(lambda: self._host.alert(title, description, level), None)

    def finished(self, outcome: Outcome, message: str = "") -> None:
        self._try(lambda: self._host.finished(outcome, message), None)

    def best_validation(self) -> float | None:
        return self._try(self._host.best_validation, None)

    def close(self) -> None:
        self._host.close()

    def _request(self, request: Callable[[], Target]) -> Target:
        reply = self._try(request, None)
        if reply is None:
            return Target(n=None)
        self._discard_stored()
        return reply

    def _try(self, call: Callable[[], R], otherwise: R) -> R:
        try:
            return call()
        except HostLost:
            self._handle_loss()
            return otherwise

    def _keep(self, report: _Report) -> None:
        with self._lock:
            if self._lost:
                self._write([report])
            else:
                self._unconfirmed.append(report)

    def _discard_stored(self) -> None:
        """Forget reports that the driver has stored, as it handles messages in their order."""
        with self._lock:
            self._unconfirmed.clear()
            if self._sent_again and not self._lost:
                self._sent_again = False
                with suppress(OSError):
                    self._note.unlink()

    def _handle_loss(self) -> None:
        with self._lock:
            if self._lost:
                return
            self._lost = True
            self._write(self._unconfirmed)
            self._unconfirmed.clear()
        self.preempted.raised = True
        with suppress(OSError, ValueError):
            sys.stderr.write(
                "det: the driver is gone: preempt.should_preempt() is true from now on, and the"
                f" script has {self._env.patience:g} s to save and end\n"
            )
            sys.stderr.flush()

    def _write(self, reports: Iterable[_Report]) -> None:
        # A report that cannot be noted is missing in the history. The checkpoint matters more.
        with suppress(OSError):
            self._note.parent.mkdir(parents=True, exist_ok=True)
            with self._note.open("a") as file:
                # The last line may be incomplete, of a process that was killed.
                file.writelines(f"\n{json.dumps(report)}" for report in reports)


def _read(note: Path) -> list[_Report]:
    found: list[_Report] = []
    with suppress(OSError, UnicodeDecodeError):
        for line in note.read_text().splitlines():
            # The process may have been killed while it wrote a line.
            with suppress(ValueError, TypeError):
                group, batches, metrics = json.loads(line)
                if isinstance(group, str) and isinstance(batches, int) and type(metrics) is dict:
                    found.append((group, batches, metrics))
    return found
