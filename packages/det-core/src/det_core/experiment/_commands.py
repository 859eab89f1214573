"""What is asked of an experiment's driver from outside, and starting one in the background."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ..errors import ExperimentBusy, StoreError
from ..store import ExperimentState, Store

_BECOMES = {"pause": ExperimentState.PAUSED, "cancel": ExperimentState.CANCELED, "kill": ExperimentState.CANCELED}


def ask(store: Store, experiment_id: int, kind: str) -> None:
    """Ask an experiment's driver to `pause`, `cancel` or `kill`; where it has none, note what it is to become.

    Raises StoreError for an experiment that has ended.
    """
    experiment = store.experiments.get(experiment_id)
    if experiment.state.ended:
        raise StoreError(f"experiment {experiment_id} is {experiment.state.lower()} already; nothing is left to {kind}")
    if is_driven(store, experiment_id):
        store.commands.send(experiment_id, kind)
        return
    state = _BECOMES[kind]
    store.experiments.update(experiment_id, state=state, pid=None, ended=time.time() if state.ended else None)


def is_driven(store: Store, experiment_id: int) -> bool:
    """Tell whether a driver holds the experiment."""
    try:
        with store.lock(experiment_id):
            return False
    except ExperimentBusy:
        return True


def start_driver(
    home: Path, log: Path, experiment_id: int, environ: Mapping[str, str], engine: str = "local"
) -> subprocess.Popen[bytes]:
    """Start a driver of its own for an experiment, which outlives this process and writes to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "det_core.cli", "resume", str(experiment_id), "--engine", engine],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**environ, "DET_HOME": str(home)},
        )
