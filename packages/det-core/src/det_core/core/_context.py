"""`core.init()`: connects a script to its run, and says which run that is."""

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
from ..errors import ArgumentError, InvalidHP
from ..hooks import Plugins
from ..hooks.recording import OutsideRun, Recorded
from ..hooks.runtime import runtime
from ..ranks.backend import Communicator
from ..ranks.distributed import DistributedContext
from ..storage import open_storage
from ..train import arguments as check
from ..train.ending import ScriptEnding
from ..train.environ import WorkerEnv
from ..train.host import TRAINING, TrialHost
from ..train.interrupts import preempted_by
from ..train.media import Media
from ..train.run_setup import make_checkpoint_sink, storage_of
from ..train.saving import CheckpointSink, check_storage
from ..train.tensorboard import MANUAL
from ._checkpoint import CheckpointContext
from ._outside import (
    DefaultConfig,
    OutsideHost,
    UnmanagedConfig,
    begin_recording,
    script_run,
)
from ._profiler import ProfilerContext
from ._script_host import ScriptHost
from ._searcher import PreemptContext, PreemptMode, SearcherContext
from ._train import Fits, Steps, TensorboardMode, TrainContext, must_be_chief

ALERT_LEVELS = ("debug", "info", "warn", "error")
SIGTERM_AGAIN_SECONDS = 5.0
"""Seconds after the first SIGTERM when another ends a script without `should_preempt()` between."""


@dataclass(frozen=True, kw_only=True)
class TrialInfo:
    """The trial that a script trains.

    `hparams` are plain values. `trial_seed` is in 0 ... 2**31 - 1.
    """

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: Mapping[str, Any]
    config: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ClusterInfo:
    """The run that a script is part of.

    `latest_checkpoint` is the uuid to continue from, or None at the beginning. `steps_completed` is
    the number of batches that it had trained, 0 on a warm start. `user_data` is `data` of the
    configuration.
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
    """Return a run's environment in the form that scripts use."""
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
    """What a script can ask and report. Made by `init` and used as a context manager.

    In a run, SIGTERM requests a preemption until the context is closed, unless the script handles
    it itself. `info` is None outside of `det run`, unless `init` was given `defaults` or
    `unmanaged`.

    Leaving the context with InvalidHP reports that to the searcher and ends the process with status
    0. Leaving it with another exception reports the failure to the driver and passes it on.
    """

    def __init__(
        self,
        host: TrialHost,
        keep: CheckpointSink,
        distributed: DistributedContext,
        env: WorkerEnv | None,
        preempt_mode: PreemptMode,
        ending: ScriptEnding | None = None,
        outside: ClusterInfo | None = None,
    ) -> None:
        known = env or outside
        # Without a record of its own, a context may serve several trainings, as in a notebook.
        steps = Steps(completed=known.steps_completed if known else 0, must_rise=known is not None)
        searcher = env.config.searcher if env else None
        self._ending = ending
        if env is not None:
            host = script_host = ScriptHost(host, env)
            if distributed.rank == 0:
                script_host.send_again()
        self._host = host
        self.info: ClusterInfo | None = info_of(env) if env else outside
        self.distributed = distributed
        self.train = TrainContext(
            host,
            keep.storage,
            steps,
            env.tensorboard_dir if env else None,
            distributed.rank,
            searcher.metric if searcher else None,
        )
        self.fits = Fits(host, steps, in_run=known is not None)
        self.checkpoint = CheckpointContext(host, keep, distributed, steps, env)
        self.preempt = PreemptContext(host, distributed, preempt_mode)
        length = getattr(searcher, "max_length", None)
        unit = length.unit if length is not None else "batches" if env else "epochs"
        metric = (searcher.metric if searcher else None) or "metric"
        self.searcher = SearcherContext(host, steps, distributed, metric, unit)
        self.profiler = ProfilerContext(host, steps, distributed.local_rank)
        self._steps, self._media = steps, Media(env.tensorboard_dir if env else None)
        self._signals = ExitStack()
        # Otherwise the script has its own handler.
        if env and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            caught = preempted_by(host.preempted, signal.SIGTERM, patience=SIGTERM_AGAIN_SECONDS)
            self._signals.enter_context(caught)
            self._handler = signal.getsignal(signal.SIGTERM)
        else:
            self._handler = None
        if ending is not None:
            ending.has_own_handler = self._has_own_handler

    def alert(
        self, title: str | None = None, description: str | None = None, level: str | None = "info"
    ) -> None:
        """Send an alert to the webhooks that get its alerts, and print a line to stderr.

        - `title`, `description`: texts, cut after 200 and 10,000 characters. One is needed.
        - `level`: `debug`, `info`, `warn` or `error`.

        The driver sends it, and this returns at once. Outside of `det run` it only prints. Raises
        ArgumentError, a ValueError, for another level or without a text.
        """
        level = level or "info"
        if level not in ALERT_LEVELS:
            raise check.refuse("alert", "level", level, f"one of {', '.join(ALERT_LEVELS)}")
        texts = {
            name: check.text("alert", name, value)
            for name, value in (("title", title), ("description", description))
            if value
        }
        if not texts:
            raise check.refuse("alert", "title", title, "text")
        sys.stderr.write(f"alert {': '.join([level, *texts.values()])}\n")
        self._host.alert(texts.get("title", "")[:200], texts.get("description", "")[:10_000], level)

    def log_image(self, name: str, image: Any, batches: int | None = None) -> None:
        """Keep an image of the trial, for the page of `det ui`. For rank 0.

        - `name`: such as `samples` or `validation/masks`. At the same name and position the last
          one is kept.
        - `image`: an array of height x width, or height x width x 1, 3 or 4 channels, of uint8 or
          of floats from 0 to 1. A torch tensor has its channels first or last. Or a PIL image, a
          matplotlib figure, a path or the bytes of a PNG or JPEG file.
        - `batches`: the position. By default the highest that was reported.

        Images, tables and texts of a trial have 256 MiB and 10,000 files together, each one 16 MiB.
        What exceeds this is not kept, and the log says so. Outside of `det run` they are checked,
        and not kept.

        Raises ArgumentError, with your line, for another shape, for values that are NaN or out of
        range, and for a name with other characters than letters, digits, spaces and `_.+=,()-/`.
        Raises RuntimeError on another rank.
        """
        must_be_chief(self.distributed.rank, "log an image")
        self._media.log_image(name, image, self._steps.completed if batches is None else batches)

    def log_table(self, name: str, data: Any, batches: int | None = None) -> None:
        """Keep a table of the trial, for the page of `det ui`. For rank 0.

        `data` is a dict of columns of one length, a list of rows that are dicts, or a DataFrame.
        Each cell is a number, a text, a bool or None. `name`, `batches` and limits are as for
        `log_image`.

        Raises ArgumentError, with your line, for columns of several lengths and for cells that hold
        more than one value.
        """
        must_be_chief(self.distributed.rank, "log a table")
        self._media.log_table(name, data, self._steps.completed if batches is None else batches)

    def log_text(self, name: str, text: str, batches: int | None = None) -> None:
        """Keep a text of the trial, for the page of `det ui`.

        Arguments, limits and errors are as for `log_image`.
        """
        must_be_chief(self.distributed.rank, "log a text")
        self._media.log_text(name, text, self._steps.completed if batches is None else batches)

    def start(self) -> None:
        """Do nothing, as `init` has started the context."""

    def close(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> None:
        """Close the connection, and restore the handler of SIGTERM.

        A second call does nothing. The arguments are ignored.
        """
        self._signals.close()
        self.profiler.off()
        if self._ending is not None:
            self._ending.complete()
        self._host.close()

    def __enter__(self) -> Self:
        return self

    def _has_own_handler(self) -> bool:
        handler = signal.getsignal(signal.SIGTERM)
        own = callable(handler) and handler is not self._handler
        return own and not self._host.preempted.heeded

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if error is not None and self._ending is not None:
                # Every rank reports its own error, as the chief may not notice it.
                self._ending.fail(error)
            if isinstance(error, InvalidHP):
                sys.exit(0)
        finally:
            self.close()


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
    defaults: DefaultConfig | None = None,
    unmanaged: UnmanagedConfig | None = None,
    record: bool = True,
) -> Context:
    """Return the context of this run. Outside of `det run`, return one that works without a driver.

    Outside of `det run` it prints reports. Where det-driver is installed, rank 0 also records them
    as an experiment of the home, and of the server that commands act on, unless `record` is false
    or `DET_RECORD` is 0. `defaults`
    describes that experiment, and `unmanaged` identifies it, so that a restarted script continues
    its trial. With one of them `context.info` says where: its numbers are 0 for a run that is not
    recorded. A home that cannot be written is a warning, and the script goes on.

    `checkpoint_storage` is a directory or a URL that fsspec supports, and overrides the
    configuration's. Outside of `det run` the default is `checkpoints` in the store's home.

    With `tensorboard_mode` MANUAL, only `upload_tensorboard_files` copies TensorBoard's files to
    checkpoint storage. Otherwise they are also copied when the run has ended.

    Raises ArgumentError, a ValueError, in a run of several slots without `distributed`, and if a
    launcher started another number of ranks than `distributed` has.
    """
    env = WorkerEnv.read(os.environ)
    if env is None:
        _check(distributed, checkpoint_storage)
        preempt_mode = check.member("core.init", "preempt_mode", preempt_mode, PreemptMode)
        home = Path(os.environ.get("DET_HOME") or Path.home() / ".det")
        keep = CheckpointSink(storage=open_storage(checkpoint_storage, home / "checkpoints"))
        ranks = distributed or DistributedContext()
        run = script_run(home, defaults, unmanaged)
        recording = begin_recording(run, distributed) if record else None
        outside = OutsideHost(run.config, recording)
        info = None
        if defaults is not None or unmanaged is not None:
            info = _info_outside(run, ranks.broadcast(recording and vars(recording.recorded)))
        ends = ScriptEnding(outside, run.config) if recording else None
        return Context(outside, keep, ranks, None, preempt_mode, ends, info)
    host = runtime().connect(env)
    ending = ScriptEnding.of_run(host, env)
    try:
        _check(distributed, checkpoint_storage)
        _must_know_its_ranks(env, distributed)
        preempt_mode = check.member("core.init", "preempt_mode", preempt_mode, PreemptMode)
        tensorboard_mode = check.member(
            "core.init", "tensorboard_mode", tensorboard_mode, TensorboardMode
        )
        ranks = distributed or DistributedContext()
        if checkpoint_storage:
            storage = open_storage(checkpoint_storage, env.checkpoint_root)
        else:
            storage = storage_of(
                env, Plugins.installed(strict=os.environ.get("DET_STRICT_PLUGINS") == "1")
            )
        if tensorboard_mode is TensorboardMode.MANUAL and ranks.rank == 0:
            env.tensorboard_dir.mkdir(parents=True, exist_ok=True)
            (env.tensorboard_dir / MANUAL).touch()
        if ranks.rank == 0:
            if env.check_first:
                check_storage(storage)
            host.status(TRAINING)
        return Context(host, make_checkpoint_sink(env, storage), ranks, env, preempt_mode, ending)
    except BaseException as error:
        ending.fail(error)
        host.close()
        raise


def _check(distributed: DistributedContext | None, checkpoint_storage: str | None) -> None:
    if distributed is not None and not isinstance(distributed, Communicator):
        raise check.refuse("core.init", "distributed", distributed, "a DistributedContext, or None")
    if checkpoint_storage is not None:
        check.path("core.init", "checkpoint_storage", checkpoint_storage)


def _must_know_its_ranks(env: WorkerEnv, distributed: DistributedContext | None) -> None:
    started = env.ranks.size
    if distributed is None and max(env.slots, started) > 1:
        launched = (
            ""
            if started > 1
            else ", and start its ranks: python3 -m det_node.launch.torch_distributed python3 ..."
        )
        raise ArgumentError(
            f"this run has {max(env.slots, started)} slots; give core.init() a DistributedContext,"
            f" such as from_torch_distributed() or from_socket(){launched}"
        )
    if distributed is not None and started not in (1, distributed.size):
        raise ArgumentError(
            f"this process is rank {env.ranks.rank} of {started}, but its DistributedContext has"
            f" {distributed.size}; make it with the method of the launcher, such as"
            " from_torch_distributed() or from_socket()"
        )


def _info_outside(run: OutsideRun, recorded: Mapping[str, Any] | None) -> ClusterInfo:
    """Return a run that det did not start in the form that scripts use. `recorded` is for all."""
    known = Recorded(**recorded) if recorded else Recorded()
    trial = TrialInfo(
        trial_id=known.trial_id,
        experiment_id=known.experiment_id,
        trial_seed=0,
        hparams=run.hparams,
        config=json.loads(to_json(run.config)),
    )
    return ClusterInfo(
        cluster_id="local",
        agent_id=os.uname().nodename,
        task_id=f"trial-{known.trial_id}",
        allocation_id=f"trial-{known.trial_id}.{known.run_number}",
        task_type="TRIAL",
        slot_ids=(),
        latest_checkpoint=known.latest_checkpoint,
        steps_completed=known.steps_completed,
        user_data=run.config.data,
        trial=trial,
        container_addrs=(),
    )
