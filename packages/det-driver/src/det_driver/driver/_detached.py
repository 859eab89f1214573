"""A driver in another process: one of this host, or a job of the cluster that trains."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from det_core.errors import DetError, StoreError
from det_core.hooks import Plugins
from det_core.support.paths import read_regular

from ..engines import AllocationState
from ..store import SEVERAL, ExperimentState, Store, boot_id, is_shared
from ._fork_server import driver_environ, resume_command, started_driver
from ._lifecycle import engine_context

DRIVERS_HERE = "DET_DRIVERS_HERE"
"""A variable of what a server executes: drivers run on its machine, where it restarts them."""
_POLL_SECONDS = 0.05
_JOB_SECONDS = 10.0


def start_driver(
    store: Store, home: Path, experiment_id: int, environ: Mapping[str, str]
) -> tuple[int, Path]:
    """Start a driver in a process that outlives this one. Return its process id and its log.

    Returns when that driver holds the experiment. From then on a caller finds it ACTIVE or ended.

    - ExperimentBusy: another driver holds the experiment.
    - StoreError: the driver could not take it. The message has the driver's last output.
    """
    before = store.experiments.get(experiment_id)
    if before.state is ExperimentState.ACTIVE:
        # The driver of an experiment that was just paused may still hold its lock.
        with store.lock(experiment_id):
            pass
    log = store.experiment_dir(experiment_id) / "driver.log"
    with log.open("ab") as output:
        began = output.tell()
        # The lock lasts as long as the driver, which inherits the file.
        fcntl.flock(output, fcntl.LOCK_SH)
        with started_driver(home, experiment_id, environ, output) as driver:
            while driver.poll() is None and store.experiments.get(experiment_id).pid != driver.pid:
                time.sleep(_POLL_SECONDS)
    if driver.returncode and store.experiments.get(experiment_id) == before:
        printed = read_regular(log)[began:].decode(errors="replace").strip()
        raise StoreError(
            f"the driver of experiment {experiment_id} ended at once, with status"
            f" {driver.returncode}:\n{printed}"
        )
    return driver.pid, log


def submit_driver(
    store: Store,
    home: Path,
    experiment_id: int,
    environ: Mapping[str, str],
    *,
    plugins: Plugins | None = None,
) -> tuple[str, str] | None:
    """Have the experiment's engine start a driver as a job. Return its name, and what it waits for.

    `plugins` are the installed plugins. Without them they are looked up, which takes time.

    Returns None where the engine has no such jobs, or `environ` has `DRIVERS_HERE`. Else it returns
    when the job has begun or has waited for some seconds. From then on several hosts use the home.

    StoreError:

    - The job ends at once.
    - This host does not see the job's lock of the experiment. Commands here and the driver would
      not know of each other.
    - Another driver works in the home, which only one host has used before.
    """
    if environ.get(DRIVERS_HERE):
        return None
    plugins, directory = plugins or Plugins.installed(), store.experiment_dir(experiment_id)
    engine = plugins.engines()[store.experiments.get(experiment_id).engine].load()(
        lambda event: None
    )
    if not engine.has_drivers:
        return None
    if not is_shared(home):
        # Also one that the user of the store does not see, or that is archived.
        with Store.reader(home) as whole:
            driven = [
                each.experiment.id
                for each in whole.experiments.list(archived=None, unread={})
                if whole.experiments.driven(each.experiment.id)
            ]
        if driven:
            # Its write-ahead log is indexed in this host's memory, which other hosts do not see.
            raise StoreError(
                f"{home} becomes one of several machines by a driver in a job, and experiment"
                f" {driven[0]} is driven on this one: wait for it, or det pause {driven[0]}"
            )
        (home / SEVERAL).touch(0o600)
    log = directory / "driver.log"
    began = log.stat().st_size if log.exists() else 0
    with store.lock(experiment_id):
        store.experiments.update(
            experiment_id, state=ExperimentState.ACTIVE, pid=None, boot=None, ended=None
        )
    context = engine_context(store, experiment_id, plugins)
    try:
        job = engine.submit_driver(
            context,
            [*resume_command(experiment_id), "--in-job"],
            driver_environ(home, environ),
            log,
        )
        deadline = time.monotonic() + _JOB_SECONDS
        while time.monotonic() < deadline:
            found, allocation = store.experiments.get(experiment_id), engine.driver(context)
            if found.state is not ExperimentState.ACTIVE:
                return job, ""
            if found.pid is not None:
                _check_seen(store, experiment_id, found.boot)
                return job, ""
            if allocation.state is AllocationState.ENDED:
                printed = (
                    read_regular(log)[began:].decode(errors="replace").strip()
                    if log.exists()
                    else ""
                )
                unseen = f"its machine may not see {directory}" + (
                    f" ({allocation.reason})" if allocation.reason else ""
                )
                raise StoreError(f"the job {job} of the driver ended at once: {printed or unseen}")
            time.sleep(_POLL_SECONDS)
        return job, allocation.reason
    except DetError:
        engine.stop_detached(context, at_once=True)
        with suppress(DetError), store.lock(experiment_id):
            store.experiments.update(experiment_id, state=ExperimentState.PAUSED)
        raise


def _check_seen(store: Store, experiment_id: int, boot: str | None) -> None:
    free = boot != boot_id() and not store.experiments.driven(experiment_id)
    if free and store.experiments.get(experiment_id).state is ExperimentState.ACTIVE:
        raise StoreError(
            f"the driver's lock of {store.experiment_dir(experiment_id)} is not seen on this"
            " machine: locks of that file system do not hold between machines; set DET_HOME to one"
            " whose locks do, or leave out --detach"
        )
