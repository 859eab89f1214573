"""Whether a machine has the slots that an experiment's trials need."""

from __future__ import annotations

from det_core.config import ExperimentConfig
from det_core.errors import DetError
from det_core.launch import hosts_of

from ._settings import DriverSettings


def check_slots(config: ExperimentConfig, settings: DriverSettings) -> None:
    """Raise DetError where a trial needs more slots than there are: it would wait for ever."""
    if hosts_of(config):
        return
    wanted, there = config.resources.slots_per_trial, settings.slots
    if wanted > max(there, 1):
        kind = "GPUs" if settings.gpus else "CPU slots and no GPU"
        raise DetError(
            f"resources.slots_per_trial is {wanted}, but this machine has {there} {kind}; ask for {there} at most"
        )
