"""Runs TensorFlow's Estimator under det-core's loop."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import tensorflow as tf

from det_core import Adapter, CheckpointError, DetError, Loop, Metrics, RunInfo
from det_core.support.archives import check_zip
from det_core.train.ranks import global_batch_size, join_ranks, of_all_ranks
from det_core.train.rng import plain_host_rng, set_host_rng, untouched_host_rng
from det_keras.bundles import check_variables, unreadable
from det_keras.unreduced import UnreducedVariables, checksum
from det_keras.unsaved import digests, is_users

from .backend import EstimatorBackend
from .build import build_parts, build_trial
from .context import EstimatorTrialContext
from .evaluation import Evaluation
from .exports import Exports, save_models
from .load import find_old_variables
from .training import PREFIX, Training
from .trial import EstimatorTrial, RunHook
from .waiting import FILE as WAITING_FILE

_LOADS_NOTHING = RunHook.on_checkpoint_load
STATE_FILE, DRIFT_FILE = "det_estimator.json", "statistics_of_ranks.npz"
_REFUSAL = (
    "the backend {name} cannot reduce the gradients of an estimator; derive it from"
    " det_estimator.backend.EstimatorBackend, or set distributed.backend to native or horovod"
)


class EstimatorAdapter(Adapter[EstimatorTrial]):
    """Trains an `EstimatorTrial` under det-core's loop."""

    framework_version = str(tf.__version__)

    def __init__(self, trial_class: type[EstimatorTrial], run: RunInfo) -> None:
        self._run = run
        self._open = ExitStack()
        self._position = run.first_batch
        self._checkpoint: tuple[int, str] | None = None
        self._validated: tuple[int, Metrics] | None = None
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
        # It also seeds the generator from which Keras's layers take their seeds. An earlier run of
        # this process may have made it.
        tf.keras.utils.set_random_seed(run.seed % 2**32)
        self.context = EstimatorTrialContext(run, backend=backend)
        self.trial = build_trial(trial_class, self.context)
        self._parts = build_parts(self.trial, self.context, self._dir)
        self._hooks = [hook for hook in self._parts.hooks() if isinstance(hook, RunHook)]
        for hook in self._hooks:
            self._open.callback(hook.on_trial_close)
        self._training = Training(self.context, self._parts)
        self._open.callback(self._training.close)
        self._unreduced = UnreducedVariables(
            self._training.unreduced, self._training.set_unreduced, run.distributed
        )
        self._saved_unreduced: list[Any] = []
        # The attributes of hooks when training begins, and whether a warning has named some.
        self._begun: dict[str, str] = {}
        self._named = False
        self._evaluation = Evaluation(self.context, self._parts)
        self._exports = Exports(self._parts)
        self._batches_per_epoch: int | None = run.distributed.broadcast(
            self._training.batches.length
        )

    @classmethod
    def create(cls, trial: type[EstimatorTrial], run: RunInfo) -> EstimatorAdapter:
        return cls(trial, run)

    # Training

    def train(self, loop: Loop) -> None:
        self.context.stops(loop.request_stop)
        training, unreduced = self._training, self._unreduced
        self._restore_unreduced()
        unreduced.desynchronize()
        with Summaries(self._run) as summaries:
            step = training.steps(loop.done, summaries.write)
            self._begun = self._hook_state()
            for number in loop.batches(count(loop.done)):
                metrics = step(number)
                self._position = number + 1
                if training.stop_requested:
                    loop.request_stop()
                loop.step(metrics)
                unreduced.desynchronize()

    def numbers(self, rows: Sequence[Metrics]) -> list[dict[str, float]]:
        return of_all_ranks(super().numbers(rows), self._run)

    def validate(self) -> Metrics:
        if self._validated is not None and self._validated[0] == self._position:
            return dict(self._validated[1])
        with untouched_host_rng():
            checkpoint = self._saved_variables()
            metrics = self._evaluation(checkpoint)
            if self._run.distributed.rank == 0:
                self._exports(checkpoint, metrics, self._position)
        found = {name: value for name, value in metrics.items() if name != "global_step"}
        self._validated = self._position, found
        return dict(found)

    def finish(self) -> None:
        """Validate, so that the last checkpoint contains the exports of the last validation."""
        if self._exports.exporters:
            # The next validation raises the same error, after the checkpoint is saved.
            with suppress(Exception):
                self.synchronize()
                self.validate()

    # Several ranks

    def synchronize(self) -> None:
        """Give every rank the means of statistics such as BatchNorm's, until it trains again."""
        self._restore_unreduced()
        self._unreduced.synchronize_variables()

    def fingerprint(self) -> str:
        return checksum(self._training.trained())

    def _restore_unreduced(self) -> None:
        saved, self._saved_unreduced = self._saved_unreduced, []
        try:
            self._unreduced.restore(saved)
        except (LookupError, TypeError, ValueError, tf.errors.OpError) as error:
            raise CheckpointError(
                f"{DRIFT_FILE} of the checkpoint does not fit the trial: {error!s:.200}; name a"
                " checkpoint of this model"
            ) from error

    # State

    def _saved_variables(self) -> str:
        """Return the path of a TensorFlow checkpoint with the current variables."""
        if self._checkpoint is None or self._checkpoint[0] != self._position:
            self._checkpoint = self._position, self._training.save(self._dir, self._position)
        return self._checkpoint[1]

    def save(self, path: Path) -> None:
        with untouched_host_rng():
            self._save(path)

    def _save(self, path: Path) -> None:
        self._name_unsaved()
        mine = {"random_ops": self._training.random_state(), "rng": plain_host_rng()}
        of_ranks = self._run.distributed.allgather(mine)
        self._training.save_waiting(path)
        unreduced = self._unreduced.state()
        if self._run.distributed.rank != 0:
            return
        checkpoint = Path(self._saved_variables())
        for file in checkpoint.parent.glob(f"{checkpoint.name}.*"):
            _copy(file, path / file.name)
        (path / "checkpoint").write_text(f'model_checkpoint_path: "{checkpoint.name}"\n')
        (path / STATE_FILE).write_text(
            json.dumps({"variables": checkpoint.name, "ranks": of_ranks})
        )
        if any(unreduced):
            np.savez(
                path / DRIFT_FILE,
                **{
                    f"{rank}:{name}": v
                    for rank, own in enumerate(unreduced)
                    for name, v in own.items()
                },
            )
        self._exports.save(path)
        save_models(self._parts, str(checkpoint), path)

    def _name_unsaved(self) -> None:
        """Warn once of attributes of hooks that training changes, as no checkpoint holds them."""
        now = {} if self._named else self._hook_state()
        changed = [name for name, state in now.items() if self._begun.get(name, state) != state]
        if changed:
            self._named = True
            warnings.warn(
                f"training changes {', '.join(changed[:3])} of hooks, which no checkpoint holds: a"
                " resumed run begins with it as it is built; keep it in a variable of the graph, or"
                " in a file of a RunHook (on_checkpoint_end, on_checkpoint_load)",
                stacklevel=2,
            )

    def _hook_state(self) -> dict[str, str]:
        """Return checksums of the attributes of the user's hooks that save nothing themselves."""
        return {
            f"{type(hook).__name__}.{name}": checksum
            for hook in self._training.hooks
            if is_users(type(hook))
            and getattr(type(hook), "on_checkpoint_load", _LOADS_NOTHING) is _LOADS_NOTHING
            for name, checksum in digests(hook, plain=True).items()
        }

    def written(self, path: Path) -> None:
        # The random numbers that hooks draw must not depend on how often a run is saved.
        with untouched_host_rng():
            for hook in self._hooks:
                hook.on_checkpoint_end(str(path))

    def load(self, path: Path) -> None:
        file = path / STATE_FILE
        if not file.is_file():
            if not self._run.first_batch and (prefix := find_old_variables(path)) is not None:
                # Of a checkpoint that Determined wrote, a new trial takes the variables.
                check_variables(prefix)
                self._training.start_from(str(prefix))
                return
            raise CheckpointError(
                f"{path} holds no {STATE_FILE}; name a checkpoint of an EstimatorTrial"
            )
        try:
            self._load(path, json.loads(file.read_text()))
        except DetError:
            raise
        # NumPy, zipfile and TensorFlow raise errors of many types for malformed files.
        except Exception as error:
            raise unreadable(path, error) from error
        for hook in self._hooks:
            hook.on_checkpoint_load(str(path))

    def _load(self, path: Path, state: dict[str, Any]) -> None:
        name = state["variables"]
        if Path(name).name != name or not path.joinpath(f"{name}.index").is_file():
            raise CheckpointError(f"{path} holds no variables {name!r}; the checkpoint is damaged")
        check_variables(path / name)
        for part in path.glob(f"{name}.*"):
            _copy(part, self._dir / part.name.replace(name, f"{PREFIX}-restored"))
        if (path / WAITING_FILE).is_file():
            _copy(path / WAITING_FILE, self._dir / WAITING_FILE)
        ranks, rank = state["ranks"], self._run.distributed.rank
        mine = ranks[rank] if rank < len(ranks) else {"random_ops": ranks[0]["random_ops"]}
        # Convert the counts now. They are assigned to variables only when a session is first
        # needed, where an error would have no clear message.
        counts = {str(op): int(np.int64(count)) for op, count in mine["random_ops"].items()}
        self._checkpoint = self._validated = None
        if (path / DRIFT_FILE).is_file() and self._run.first_batch:
            self._saved_unreduced = _read_unreduced(path / DRIFT_FILE, len(ranks))
        self._training.restore(str(self._dir / f"{PREFIX}-restored"), counts)
        self._exports.load(path)
        if "rng" in mine:
            set_host_rng(mine["rng"])

    # Facts

    @property
    def batches_per_epoch(self) -> int | None:
        return self._batches_per_epoch

    @property
    def global_batch_size(self) -> int | None:
        return global_batch_size(self._run)

    def close(self) -> None:
        self._open.close()


def _read_unreduced(file: Path, ranks: int) -> list[dict[str, Any]]:
    check_zip(file)
    with np.load(file, allow_pickle=False) as arrays:
        found = [(*name.split(":", 1), arrays[name]) for name in arrays.files]
    return [
        {name: array for number, name, array in found if number == str(rank)}
        for rank in range(ranks)
    ]


def _copy(source: Path, target: Path) -> None:
    # The target may be a hard link to an earlier checkpoint's file, which must not be overwritten.
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _joined(run: RunInfo) -> EstimatorBackend | None:
    """Connect to the other ranks of a run. Return None if there is only one rank."""
    backend: EstimatorBackend | None = join_ranks(run, EstimatorBackend, _REFUSAL)
    return backend


class Summaries:
    """Writes merged summaries on the chief to the run's directory.

    The file is opened for the first one.
    """

    def __init__(self, run: RunInfo) -> None:
        self._directory = run.tensorboard_dir if run.distributed.rank == 0 else None
        self._writer: Any = None

    @property
    def write(self) -> Any:
        """A function of the summaries and their batch's number, or None if nothing is written."""
        return self._write if self._directory is not None else None

    def _write(self, summaries: bytes, number: int) -> None:
        if self._writer is None:
            with tf.Graph().as_default():
                self._writer = tf.compat.v1.summary.FileWriter(str(self._directory))
        self._writer.add_summary(summaries, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()
