"""Experiments that seem to run, but whose driver has died."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from ..store import ExperimentRow, ExperimentState, Store, boot_id


def orphaned(store: Store, experiment: ExperimentRow) -> bool:
    """Tell whether an experiment is ACTIVE, was started, and no driver holds it now."""
    if experiment.state is not ExperimentState.ACTIVE or experiment.started is None:
        return False
    if experiment.boot != boot_id() or not Path(f"/proc/{experiment.pid}").exists():
        return True
    return _is_free(store.experiment_dir(experiment.id) / "lock")  # the number may be another process's by now


def _is_free(lock: Path) -> bool:
    try:
        file = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True
