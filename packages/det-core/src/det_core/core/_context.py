"""`core.init()`: the script's side of a run, and which run it is part of."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..config import to_json
from ..distributed import DistributedContext
from ..environ import WorkerEnv
from ..errors import InvalidHP
from ..host import Outcome, Target, TrialHost
from ..interrupts import preempted_by
from ..local import LocalHost, print_report
from ..plugins import Plugins
from ..saving import Keep
from ..storage import open_storage
from ..tensorboard import MANUAL
from ..worker import connect, keep_of, storage_of
from ._checkpoint import CheckpointContext
from ._profiler import ProfilerContext
from ._searcher import PreemptContext, PreemptMode, SearcherContext
from ._train import Steps, TensorboardMode, TrainContext

SIGTERM_AGAIN_SECONDS = 5.0
"""A SIGTERM that comes so much later than the first ends a script that has not asked `should_preempt()` in between."""


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


class Context:
    """What a script may ask and tell; made by `init`, used as a context manager.

    In a run SIGTERM asks for a preemption until it is closed, unless the script handles it itself.
    `info` is None outside of `det run`. Leaving it with InvalidHP says so to the searcher and ends the process with status 0.
    """

    def __init__(
        self,
        host: TrialHost,
        keep: Keep,
        distributed: DistributedContext,
        env: WorkerEnv | None,
        preempt_mode: PreemptMode,
    ) -> None:
        steps = Steps(completed=env.steps_completed if env else 0)
        searcher = env.config.searcher if env else None
        self._host = host
        self.info: ClusterInfo | None = info_of(env) if env else None
        self.distributed = distributed
        self.train = TrainContext(host, keep.storage, steps, env.tensorboard_dir if env else None, distributed.rank)
        self.checkpoint = CheckpointContext(host, keep, distributed, steps, env)
        self.preempt = PreemptContext(host, distributed, preempt_mode)
        length = getattr(searcher, "max_length", None)
        unit = length.unit if length is not None else "batches" if env else "epochs"
        metric = (searcher.metric if searcher else None) or "metric"
        self.searcher = SearcherContext(host, steps, distributed, metric, unit)
        self.profiler = ProfilerContext(host, steps, distributed.local_rank)
        self._signals = ExitStack()
        if env and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the script has one of its own
            caught = preempted_by(host.preempted, signal.SIGTERM, patience=SIGTERM_AGAIN_SECONDS)
            self._signals.enter_context(caught)

    def close(self) -> None:
        """Give the connection back, and SIGTERM to whom it was before; twice is harmless."""
        self._signals.close()
        self.profiler.off()
        self._host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if isinstance(error, InvalidHP):
                self._host.finished(Outcome.INVALID_HP, str(error))  # of any rank: the chief may never hear of it
                sys.exit(0)
        finally:
            self.close()


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """Return the context of this run, or, outside of `det run`, one with harmless stand-ins.

    `checkpoint_storage` is a directory or a URL that fsspec knows, and overrides the configuration's; outside of `det run` it is
    by default `checkpoints` in the store's home. With `tensorboard_mode` MANUAL, TensorBoard's files are copied to checkpoint
    storage by `upload_tensorboard_files` only, and not when the run has ended, too. Raises ValueError in a run of several slots
    without `distributed`, and where a launcher started other ranks than `distributed` has.
    """
    env = WorkerEnv.read(os.environ)
    if env is not None:
        _must_know_its_ranks(env, distributed)
    ranks = distributed or DistributedContext()
    if env is None:
        home = Path(os.environ.get("DET_HOME") or Path.home() / ".det")
        keep = Keep(storage=open_storage(checkpoint_storage, home / "checkpoints"))
        return Context(_Alone(), keep, ranks, None, preempt_mode)
    if checkpoint_storage:
        storage = open_storage(checkpoint_storage, env.checkpoint_root)
    else:
        storage = storage_of(env, Plugins.installed(strict=os.environ.get("DET_STRICT_PLUGINS") == "1"))
    if tensorboard_mode is TensorboardMode.MANUAL and ranks.rank == 0:
        env.tensorboard_dir.mkdir(parents=True, exist_ok=True)
        (env.tensorboard_dir / MANUAL).touch()
    return Context(connect(env), keep_of(env, storage), ranks, env, preempt_mode)


def _must_know_its_ranks(env: WorkerEnv, distributed: DistributedContext | None) -> None:
    started = env.ranks.size
    if distributed is None and max(env.slots, started) > 1:
        launched = (
            "" if started > 1 else ", and start its ranks: python3 -m det_core.launch.torch_distributed python3 ..."
        )
        raise ValueError(
            f"this run has {max(env.slots, started)} slots; give core.init() a DistributedContext, such as "
            f"from_torch_distributed() or from_socket(){launched}"
        )
    if distributed is not None and started not in (1, distributed.size):
        raise ValueError(
            f"this process is rank {env.ranks.rank} of {started}, but its DistributedContext has {distributed.size}; make it "
            "with the method of the launcher, such as from_torch_distributed() or from_socket()"
        )


class _Alone(LocalHost):
    """The stand-in for a driver: prints reports, and has one operation of length 1."""

    def __init__(self) -> None:
        super().__init__(Target(n=1, unit="epochs"), listener=print_report)

    def completed(self, batches: int, metrics: Any, length: int) -> Target:
        self._target = Target(n=None)
        return self._target
