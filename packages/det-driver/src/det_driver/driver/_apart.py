"""A driver apart from whoever starts it: a process of this machine, or a job of the cluster that lends the machines."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from det_core.errors import DetError, StoreError
from det_core.plugins import Plugins

from ..engines import Standing
from ..store import SEVERAL, ExperimentState, Store, boot_id, is_shared
from ._lifecycle import site_of

_POLL_SECONDS = 0.05
_JOB_SECONDS = 10.0


def _resume(experiment_id: int) -> list[str]:
    return ["-P", "-m", "det_driver.cli", "resume", str(experiment_id)]


def start_driver(store: Store, home: Path, experiment_id: int, environ: Mapping[str, str]) -> tuple[int, Path]:
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
            [sys.executable, *_resume(experiment_id)],
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


def submit_driver(store: Store, home: Path, experiment_id: int, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Have the experiment's engine start a driver in a job of its own; return its name, and for what it waits.

    None where the engine has no such place. From then on the home is used from several machines. Returns when the job has
    begun, or has been waiting for some seconds. Raises StoreError where it ends at once, where the lock that it has of the
    experiment is not seen here, as commands of this machine and the driver would not know of each other, and where the home has not
    been used so before and another driver works in it.
    """
    plugins, directory = Plugins.installed(), store.experiment_dir(experiment_id)
    engine = plugins.engines()[store.experiments.get(experiment_id).engine].load()(lambda event: None)
    if not engine.has_drivers:
        return None
    if not is_shared(home):
        driven = [
            each.experiment.id for each in store.experiments.list() if store.experiments.driven(each.experiment.id)
        ]
        if driven:  # what it has written ahead is this machine's memory
            raise StoreError(
                f"{home} becomes one of several machines by a driver in a job, and experiment {driven[0]} is driven on this one: "
                f"wait for it, or det pause {driven[0]}"
            )
        (home / SEVERAL).touch(0o600)
    log = directory / "driver.log"
    began = log.stat().st_size if log.exists() else 0
    with store.lock(experiment_id):
        store.experiments.update(experiment_id, state=ExperimentState.ACTIVE, pid=None, boot=None, ended=None)
    site = site_of(store, experiment_id, plugins)
    try:
        job = engine.submit_driver(site, [*_resume(experiment_id), "--in-job"], {**environ, "DET_HOME": str(home)}, log)
        deadline = time.monotonic() + _JOB_SECONDS
        while time.monotonic() < deadline:
            found, told = store.experiments.get(experiment_id), engine.driver(site)
            if found.state is not ExperimentState.ACTIVE:
                return job, ""
            if found.pid is not None:
                _check_seen(store, experiment_id, found.boot)
                return job, ""
            if told.standing is Standing.ENDED:
                said = log.read_bytes()[began:].decode(errors="replace").strip() if log.exists() else ""
                unseen = f"its machine may not see {directory}" + (f" ({told.reason})" if told.reason else "")
                raise StoreError(f"the job {job} of the driver ended at once: {said or unseen}")
            time.sleep(_POLL_SECONDS)
        return job, told.reason
    except DetError:
        engine.dismiss(site, at_once=True)
        with suppress(DetError), store.lock(experiment_id):
            store.experiments.update(experiment_id, state=ExperimentState.PAUSED)
        raise


def _check_seen(store: Store, experiment_id: int, boot: str | None) -> None:
    free = boot != boot_id() and not store.experiments.driven(experiment_id)
    if free and store.experiments.get(experiment_id).state is ExperimentState.ACTIVE:
        raise StoreError(
            f"the driver's lock of {store.experiment_dir(experiment_id)} is not seen on this machine: locks of that file system "
            "do not hold between machines; set DET_HOME to one whose locks do, or leave out --detach"
        )
