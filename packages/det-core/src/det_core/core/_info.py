"""Which run a script is part of."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import to_json
from ..environ import WorkerEnv


@dataclass(frozen=True, kw_only=True)
class TrialInfo:
    """The trial that a script trains. `hparams` are plain values, `trial_seed` is in 0 ... 2**31 - 1."""

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: Mapping[str, Any]
    config: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ClusterInfo:
    """The run that a script is part of.

    `latest_checkpoint` is the uuid to go on from, or None at the beginning; `steps_completed` how many batches that
    checkpoint had trained, 0 on a warm start. `user_data` is `data` of the configuration.
    """

    cluster_id: str
    agent_id: str
    task_id: str
    allocation_id: str
    task_type: str
    slot_ids: tuple[int, ...]
    latest_checkpoint: str | None
    steps_completed: int
    user_data: Mapping[str, Any]
    trial: TrialInfo
    container_addrs: tuple[str, ...]
    container_rank: int = 0


def get_cluster_info() -> ClusterInfo | None:
    """Return the run that this process is part of, or None outside of `det run`."""
    env = WorkerEnv.read(os.environ)
    return None if env is None else info_of(env)


def info_of(env: WorkerEnv) -> ClusterInfo:
    """Return a run's environment in the form that scripts know."""
    variables = env.variables()
    trial = TrialInfo(
        trial_id=env.trial_id,
        experiment_id=env.experiment_id,
        trial_seed=env.seed,
        hparams=env.hparams,
        config=json.loads(to_json(env.config)),
    )
    return ClusterInfo(
        cluster_id=env.cluster_id,
        agent_id=variables["DET_AGENT_ID"],
        task_id=variables["DET_TASK_ID"],
        allocation_id=variables["DET_ALLOCATION_ID"],
        task_type="TRIAL",
        slot_ids=env.slot_ids,
        latest_checkpoint=env.latest_checkpoint,
        steps_completed=env.steps_completed,
        user_data=env.config.data,
        trial=trial,
        container_addrs=(env.driver[0],),
    )
