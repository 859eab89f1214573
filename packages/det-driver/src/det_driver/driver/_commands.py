"""What is asked of an experiment's driver from outside, and starting one in the background."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from det_core.errors import ExperimentBusy, StoreError

from ..store import ExperimentState, Store

_POLL_SECONDS = 0.05
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
    store: Store, home: Path, experiment_id: int, environ: Mapping[str, str], engine: str = "local"
) -> tuple[int, Path]:
    """Start a driver of its own for an experiment, which outlives this process; return its process and its log.

    Returns when the driver has the experiment, so that who waits for it from then on finds it ACTIVE or ended. Raises
    ExperimentBusy where another driver has it, and StoreError with the driver's last words where it could not take it.
    """
    before = store.experiments.get(experiment_id)
    if before.state is ExperimentState.ACTIVE:  # the driver of one that was just paused may not have let go of it yet
        with store.lock(experiment_id):
            pass
    log = store.experiment_dir(experiment_id) / "driver.log"
    with log.open("ab") as output:
        began = output.tell()
        driver = subprocess.Popen(
            [sys.executable, "-P", "-m", "det_driver.cli", "resume", str(experiment_id), "--engine", engine],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**environ, "DET_HOME": str(home)},
        )
    while driver.poll() is None and store.experiments.get(experiment_id).pid != driver.pid:
        time.sleep(_POLL_SECONDS)
    if driver.returncode and store.experiments.get(experiment_id) == before:
        said = log.read_bytes()[began:].decode(errors="replace").strip()
        raise StoreError(
            f"the driver of experiment {experiment_id} ended at once, with status {driver.returncode}:\n{said}"
        )
    return driver.pid, log
