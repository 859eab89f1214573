"""TensorFlow's Estimator behind core's loop."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from det_core import Adapter, CheckpointError, Loop, Metrics, RunInfo
from det_core.ranks import global_batch_size, join_ranks, of_all_ranks
from det_core.rng import plain_host_rng, seed_host, set_host_rng, untouched_host_rng
from det_keras.drift import Drift, checksum

from .backend import EstimatorBackend
from .build import build_parts, build_trial
from .context import EstimatorTrialContext
from .evaluation import Evaluation
from .exports import Exports, save_models
from .summaries import Summaries
from .training import PREFIX, Training
from .trial import EstimatorTrial, RunHook
from .waiting import FILE as WAITING_FILE

STATE_FILE, DRIFT_FILE = "det_estimator.json", "statistics_of_ranks.npz"
_REFUSAL = (
    "the backend {name} cannot reduce the gradients of an estimator; derive it from det_estimator.backend.EstimatorBackend, or set "
    "distributed.backend to native or horovod"
)


class EstimatorAdapter(Adapter[EstimatorTrial]):
    """Trains an `EstimatorTrial` under core's loop."""

    framework_version = str(tf.__version__)

    def __init__(self, trial_class: type[EstimatorTrial], run: RunInfo) -> None:
        self._run = run
        self._open = ExitStack()
        self._position = run.first_batch
        self._checkpoint: tuple[int, str] | None = None
        try:
            self._build(trial_class)
        except BaseException:
            self.close()
            raise

    def _build(self, trial_class: type[EstimatorTrial]) -> None:
        run = self._run
        backend = _joined(run)
        if backend is not None:
            self._open.callback(backend.shutdown)
        self._dir = Path(tempfile.mkdtemp(prefix="det-estimator-", dir=run.scratch))
        self._open.callback(shutil.rmtree, self._dir, ignore_errors=True)
        seed_host(run.seed)
        self.context = EstimatorTrialContext(run, backend=backend)
        self.trial = build_trial(trial_class, self.context)
        self._parts = build_parts(self.trial, self.context, self._dir)
        self._hooks = [hook for hook in self._parts.hooks() if isinstance(hook, RunHook)]
        for hook in self._hooks:
            self._open.callback(hook.on_trial_close)
        self._training = Training(self.context, self._parts)
        self._open.callback(self._training.close)
        self._drift = Drift(self._training.unreduced, self._training.set_unreduced, run.distributed)
        self._drifted: list[Any] = []
        self._evaluation = Evaluation(self.context, self._parts)
        self._exports = Exports(self._parts)
        self._batches_per_epoch: int | None = run.distributed.broadcast(self._training.batches.length)

    @classmethod
    def create(cls, trial: type[EstimatorTrial], run: RunInfo) -> EstimatorAdapter:
        return cls(trial, run)

    # Training

    def train(self, loop: Loop) -> None:
        self.context.stops(loop.request_stop)
        training, drift = self._training, self._drift
        self._take_up_drift()
        drift.part()
        with Summaries(self._run) as summaries:
            step = training.steps(loop.done, summaries.write)
            for number in loop.batches(count(loop.done)):
                metrics = step(number)
                self._position = number + 1
                if training.stop_requested:
                    loop.request_stop()
                loop.step(metrics)
                drift.part()

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        return of_all_ranks(super().numbers(rows), self._run)

    def validate(self) -> Metrics:
        with untouched_host_rng():
            checkpoint = self._saved_variables()
            metrics = self._evaluation(checkpoint)
            if self._run.distributed.rank == 0:
                self._exports(checkpoint, metrics, self._position)
        return {name: value for name, value in metrics.items() if name != "global_step"}

    # Several ranks

    def synchronize(self) -> None:
        """Give every rank the means of BatchNorm's statistics and the like, until it trains on."""
        self._take_up_drift()
        self._drift.meet()

    def fingerprint(self) -> str:
        return checksum(self._training.trained())

    def _take_up_drift(self) -> None:
        drifted, self._drifted = self._drifted, []
        self._drift.restore(drifted)

    # State

    def _saved_variables(self) -> str:
        """Return the path of a checkpoint of TensorFlow's with the variables as they are."""
        if self._checkpoint is None or self._checkpoint[0] != self._position:
            self._checkpoint = self._position, self._training.save(self._dir, self._position)
        return self._checkpoint[1]

    def save(self, path: Path) -> None:
        with untouched_host_rng():
            self._save(path)

    def _save(self, path: Path) -> None:
        mine = {"random_ops": self._training.random_state(), "rng": plain_host_rng()}
        of_ranks = self._run.distributed.allgather(mine)
        self._training.save_waiting(path)
        drift = self._drift.state()
        if self._run.distributed.rank != 0:
            return
        checkpoint = Path(self._saved_variables())
        for file in checkpoint.parent.glob(f"{checkpoint.name}.*"):
            _copy(file, path / file.name)
        (path / "checkpoint").write_text(f'model_checkpoint_path: "{checkpoint.name}"\n')
        (path / STATE_FILE).write_text(json.dumps({"variables": checkpoint.name, "ranks": of_ranks}))
        if any(drift):
            np.savez(
                path / DRIFT_FILE, **{f"{rank}:{name}": v for rank, own in enumerate(drift) for name, v in own.items()}
            )
        self._exports.save(path)
        save_models(self._parts, str(checkpoint), path)
        for hook in self._hooks:
            hook.on_checkpoint_end(str(path))

    def load(self, path: Path) -> None:
        file = path / STATE_FILE
        if not file.is_file():
            raise CheckpointError(f"{path} holds no {STATE_FILE}; name a checkpoint of an EstimatorTrial")
        state = json.loads(file.read_text())
        name = state["variables"]
        for part in path.glob(f"{name}.*"):
            _copy(part, self._dir / part.name.replace(name, f"{PREFIX}-restored"))
        if (path / WAITING_FILE).is_file():
            _copy(path / WAITING_FILE, self._dir / WAITING_FILE)
        ranks, rank = state["ranks"], self._run.distributed.rank
        mine = ranks[rank] if rank < len(ranks) else {"random_ops": ranks[0]["random_ops"]}
        self._checkpoint = None
        if (path / DRIFT_FILE).is_file() and self._run.first_batch:
            self._drifted = _drift_in(path / DRIFT_FILE, len(ranks))
        self._training.restore(str(self._dir / f"{PREFIX}-restored"), mine["random_ops"])
        self._exports.load(path)
        if "rng" in mine:
            set_host_rng(mine["rng"])
        for hook in self._hooks:
            hook.on_checkpoint_load(str(path))

    # Facts

    @property
    def batches_per_epoch(self) -> int | None:
        return self._batches_per_epoch

    @property
    def global_batch_size(self) -> int | None:
        return global_batch_size(self._run)

    def close(self) -> None:
        self._open.close()


def _drift_in(file: Path, ranks: int) -> list[dict[str, Any]]:
    with np.load(file, allow_pickle=False) as arrays:
        found = [(*name.split(":", 1), arrays[name]) for name in arrays.files]
    return [{name: array for number, name, array in found if number == str(rank)} for rank in range(ranks)]


def _copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _joined(run: RunInfo) -> EstimatorBackend | None:
    """Meet the other ranks of a run; returns None where there is one only."""
    backend: EstimatorBackend | None = join_ranks(run, EstimatorBackend, _REFUSAL)
    return backend
