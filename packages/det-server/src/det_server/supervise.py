"""Restarts the drivers that have died of the experiments that users of the server own."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from det_core.errors import DetError, ExperimentBusy
from det_core.hooks import Plugins
from det_driver.driver import DriverForkServer, start_driver
from det_driver.store import ExperimentRow, ExperimentState, Store

from .users import Users

LOOK_SECONDS = 3.0
NEW_SECONDS = 60.0
"""After this time, a submission that has not started a driver never will: its server was killed."""
FIRST_SECONDS, LONGEST_SECONDS = 2.0, 300.0
"""The pause after the first restart without progress, which doubles, and the longest one."""
MOST_RESTARTS = 6
"""How often a driver is restarted without progress, before its experiment is paused."""


@dataclass
class _Watched:
    """An experiment that was seen without a driver. `due` is of the monotonic clock."""

    due: float
    restarts: int = 0
    progress: tuple[int, ...] = ()


class Supervisor:
    """Restarts drivers on this machine.

    Drivers outlive the server, so a restarted server finds them running. The lock of an experiment
    decides which driver has it, so there are never two. An engine with jobs for drivers restarts
    them itself. Keeps `forks` running, which forks the drivers.
    """

    def __init__(
        self,
        home: Path,
        users: Users,
        environ: Mapping[str, str],
        forks: DriverForkServer | None = None,
    ) -> None:
        self._home = home
        self._users = users
        self._environ = environ
        self._forks = forks
        self._plugins = Plugins.installed()
        self._watched: dict[int, _Watched] = {}

    def run(self, stopped: threading.Event) -> None:
        """Look after all experiments until `stopped` is set."""
        while not stopped.wait(LOOK_SECONDS):
            # A store that is locked, a full disk and too many processes pass.
            with suppress(DetError, OSError):
                if self._forks is not None:
                    self._forks.keep()
                self.look(stopped)

    def look(self, stopped: threading.Event) -> None:
        """Restart the drivers that are due."""
        with Store(self._home) as store:
            active = [
                each.experiment
                for each in store.experiments.list(archived=None, unread={})
                if each.experiment.state is ExperimentState.ACTIVE
            ]
            ids = {each.id for each in active}
            self._watched = {id: each for id, each in self._watched.items() if id in ids}
            for each in active:
                if not store.experiments.driven(each.id) and self._is_ours(each):
                    # A new one is about to get its first driver.
                    patience = NEW_SECONDS if each.started is None else 0.0
                    first = _Watched(time.monotonic() + patience)
                    watched = self._watched.setdefault(each.id, first)
                    if time.monotonic() >= watched.due and not stopped.is_set():
                        # One that cannot be read does not keep others from their drivers.
                        with suppress(DetError, OSError):
                            self._restart(store, each.id, watched)

    def _is_ours(self, experiment: ExperimentRow) -> bool:
        if self._users.owner(experiment.id, experiment.created) is None:
            return False
        engine = self._plugins.engines().get(experiment.engine)
        return engine is not None and not engine.load()(lambda event: None).has_drivers

    def _restart(self, store: Store, id: int, watched: _Watched) -> None:
        """Start another driver, or pause an experiment whose drivers bring it no further."""
        # It may have ended before its lock was seen to be free.
        if store.experiments.get(id).state is not ExperimentState.ACTIVE:
            return
        progress = _progress(store, id)
        if progress > watched.progress:
            watched.restarts = 0
        watched.progress = max(progress, watched.progress)
        if watched.restarts >= MOST_RESTARTS:
            reason = (
                f"its driver ended {MOST_RESTARTS} times without progress; see why: det logs"
                f" --driver {id}; go on with: det resume {id}"
            )
            with suppress(ExperimentBusy):
                store.experiments.update(id, state=ExperimentState.PAUSED, reason=reason)
                _say(f"experiment {id} is paused: {reason}")
            return
        watched.restarts += 1
        pause = min(FIRST_SECONDS * 2 ** (watched.restarts - 1), LONGEST_SECONDS)
        watched.due = time.monotonic() + pause
        _say(f"experiment {id} has lost its driver; starting another one")
        try:
            start_driver(store, self._home, id, self._environ)
        except ExperimentBusy:
            return
        except DetError as error:
            _say(str(error))


def _progress(store: Store, experiment_id: int) -> tuple[int, ...]:
    """Return a value that grows while trials end, begin, and train."""
    trials = store.trials.list(experiment_id)
    ended = sum(trial.ended is not None for trial in trials)
    return ended, len(trials), sum(trial.batches for trial in trials)


def _say(text: str) -> None:
    sys.stderr.write(f"det server: {text}\n")
    sys.stderr.flush()
