"""DeterminedCallback: reports, saves, preempts and resumes a script's own `model.fit`."""

from __future__ import annotations

import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from det_core import DetError, DistributedContext, Flag, TrialError, preempted_by
from det_core.checkpoint.code import copy_code
from det_core.core import Context

from .attributes import counters_of, only_variables, read_variables, write_variables
from .changes import Changes, check_trained, trained
from .neighbours import (
    Place,
    begins_training,
    memory,
    overwrites,
    refuse_rivals,
    remind,
    show_neighbours,
    unsaved,
)
from .optim import computed_by, loss_scale_of, variables_of
from .parts import (
    build_as_saved,
    learning_rate_of,
    optimizer_state,
    restore_learning_rate,
    restore_optimizer,
)
from .rng import Generators
from .scripts import (
    attributes_of,
    build,
    build_optimizer,
    lacks_weights,
    load_weights,
    other_optimizers,
    put_best_weights,
    save_weights,
    shape_of,
    start_at,
    steps_at_once,
    steps_trained,
    unbuilt,
)
from .state import STATE, read_state, write_state
from .unsaved import find_unsaved
from .versions import KERAS_3, check_backend, keras

MODEL = "model_checkpoint"


class DeterminedCallback(keras.callbacks.ProgbarLogger):  # type: ignore[misc]
    """Reports, saves, preempts and resumes a `fit`.

    - `core_context` is what `det_core.core.init()` returned.
    - `checkpoint` is the uuid of the checkpoint to begin with, or None. Under `det run` that is
      `latest_checkpoint` of `get_cluster_info()`.
    - `continue_id` names this training, by a number or text, and is written into its checkpoints.
      If `checkpoint` has the same id, training continues with the next epoch. Otherwise only the
      model is restored and training begins at epoch 0. Under `det run`, use the id of the trial.
    - `train_metrics_report_period` is the number of batches between two reports of training
      metrics, or "epoch".
    - `checkpoint_epochs` is the number of epochs between two checkpoints. 0 saves none of them. A
      checkpoint is always saved at the end and when preempted.

    `epochs` of `fit` is the last epoch, also after a resume. The checkpoint determines
    `initial_epoch`. The callback handles preemption, and SIGTERM, when an epoch ends. It serves one
    `fit`, and replaces Keras's progress bar. Raises TrialError if the callbacks also have a
    BackupAndRestore or a ModelCheckpoint.
    """

    _chief_worker_only = False
    _supports_tf_logs = True
    # If a callback reads the metrics of every batch, Keras waits for them. This one reads them only
    # if it reports them.
    on_train_batch_end = keras.callbacks.Callback.on_train_batch_end
    on_test_batch_end = keras.callbacks.Callback.on_test_batch_end

    def __init__(
        self,
        core_context: Context,
        checkpoint: str | None,
        continue_id: int | str,
        *,
        train_metrics_report_period: int | str = "epoch",
        checkpoint_epochs: int = 1,
    ) -> None:
        check_backend()
        # With a callback of this class, Keras adds no progress bar. Its state is not needed.
        keras.callbacks.Callback.__init__(self)
        self._core = core_context
        self._distributed: DistributedContext = core_context.distributed
        self._is_chief = self._distributed.rank == 0
        self._checkpoint, self._continue_id = checkpoint, checked_id(continue_id)
        self._report_period = checked_period(train_metrics_report_period)
        self._checkpoint_epochs = checked_epochs(checkpoint_epochs)
        self._code_dir = Path.cwd()
        self._epoch = -1
        self._count = StepCount()
        # The number of batches up to which training reports were due.
        self._reported = 0
        # The epochs of the fits before this one.
        self._epochs_before = 0
        # Whether the first batch builds the model, and no checkpoint was saved yet.
        self._unbuilt = False
        self._begun = self._preempted = self._ended = False
        # Whether the training step was searched for what no checkpoint holds.
        self._looked = False
        # The attributes of callbacks that no checkpoint holds, until a warning has named some.
        self._begun_with: dict[str, str] | None = None
        self._phases = Phases(checkpoint)
        self._neighbours: list[Any] = []
        # Those of them whose hooks are called after this one's.
        self._behind: list[Any] = []
        # Restores the model and the generators, if this `fit` resumes a training.
        self._resume: Callable[[], None] | None = None
        # The weights after training, if a callback may overwrite them.
        self._left: list[Any] | None = None
        self._open = ExitStack()
        self._memories: list[Any] = []
        # The weights that are trained, before the hooks of an epoch's begin or end.
        self._trained: dict[int, tuple[Any, bool]] = {}
        self._changes: Changes | None = None
        self._saved_changes: dict[str, Any] = {}
        self._lines: ProgressLines | None = None
        show_neighbours()
        if self._report_period:
            self._after_batch, self.on_train_batch_end = self.on_train_batch_end, self._report_batch

    # What a script may override

    def save_model(self, model: Any, path: str, distributed: DistributedContext) -> None:
        """Write the model to files whose names begin with `path`.

        It is called on every rank, and the chief's files are kept. By default it writes
        `{path}.weights.h5`, with the optimizer's state, which `model.load_weights` reads.
        """
        save_weights(model, path, distributed.rank)

    def load_model(self, model: Any, path: str, distributed: DistributedContext) -> None:
        """Read what `save_model` wrote to `path`. The files exist until `fit` ends."""
        load_weights(model, path)

    # Keras's hooks

    def set_neighbours(self, callbacks: list[Any]) -> None:
        """Keep the other callbacks of the `fit`, and add two helpers of det to the list in place.

        The first is called before all others, and the second after them. Keras's list of callbacks
        calls this when `fit` begins (`show_neighbours`).
        """
        self._neighbours = [each for each in callbacks if each is not self]
        self._behind = callbacks[callbacks.index(self) + 1 :]
        callbacks.insert(0, Place(self._epoch_begins, self._epoch_is_trained, self._training_ends))
        callbacks.append(Place(self._check_changes, self._epoch_is_over, starts=self._has_started))

    def set_params(self, params: dict[str, Any]) -> None:
        keras.callbacks.Callback.set_params(self, params)
        silent = not self._is_chief or params.get("verbose", 0) == 0
        self._lines = (
            None if silent else ProgressLines(params.get("epochs", 1), params.get("steps"))
        )

    def on_train_begin(self, logs: Any = None) -> None:
        if self._begun:
            raise TrialError(
                "a DeterminedCallback serves one fit(); train all epochs in it, or make another for"
                " the next"
            )
        self._begun, self._unbuilt = True, lacks_weights(self.model)
        refuse_rivals(type(self).__name__, self._neighbours)
        phases = self._phases = Phases.of(self._core, self._checkpoint, self._continue_id)
        self._count.before = self._reported = phases.steps
        self._epochs_before = phases.epochs
        self._open.enter_context(preempted_by(phases.signal, signal.SIGTERM))
        if phases.preempted:
            self._leave_out("is left to the run that goes on", None)
        elif self._checkpoint is not None:
            self._status("restoring")
            self._restore(
                self._open.enter_context(self._core.checkpoint.restore_path(self._checkpoint))
            )

    def _has_started(self) -> None:
        """Restore once more what other callbacks may have changed when training began.

        Each run calls their hooks, and what these did in the first run is in the checkpoint.
        """
        if self._resume is not None and any(map(begins_training, self._behind)):
            self._resume()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._count.begin_epoch(self.model, self.params.get("steps"))
        self._status("training")
        if self._lines:
            self._lines.begin(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._count.batch = batch
        if self._lines:
            self._lines.batch(batch)

    def on_test_begin(self, logs: Any = None) -> None:
        self._count.end_epoch()
        self._status("validating")

    def on_test_end(self, logs: Any = None) -> None:
        if self._is_chief:
            self._report("validation", self._named_as_searched(_numbers(logs)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._report_epoch(epoch, _numbers(logs))

    def on_train_end(self, logs: Any = None) -> None:
        start_at(self.model, None)
        self._open.close()
        phases = self._phases
        phases.preempted |= self._preempted
        phases.steps, phases.epochs = self._count.before, self._epochs_before + self._epoch + 1
        if not phases.preempted:
            phases.over.append(self._continue_id)
        if self._preempted:
            self._core.preempt.acknowledge_preemption_signal()
        self._status("finishing")

    def on_predict_begin(self, logs: Any = None) -> None:
        pass

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        pass

    def on_predict_end(self, logs: Any = None) -> None:
        pass

    # Keras 2 asks which hooks a callback has.

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False

    # Reports

    def _report(self, group: str, metrics: Mapping[str, Any]) -> None:
        position = {"epochs": self._epochs_before + self._epoch + 1, "batches": self._count.total}
        self._core.train.report_metrics(group, self._count.total, {**metrics, **position})

    def _report_batch(self, batch: int, logs: Any = None) -> None:
        period, before = self._report_period, self._reported
        now = self._count.estimate()
        if self._is_chief and now // period > before // period:
            now = self._count.total
            if now // period > before // period:
                self._report("training", _numbers(logs))
        self._reported = now
        self._after_batch(batch, logs)

    def _report_epoch(self, epoch: int, numbers: dict[str, Any]) -> None:
        """Report and print an epoch's metrics."""
        if not self._is_chief:
            return
        if not self._report_period:
            self._report(
                "training",
                {name: value for name, value in numbers.items() if not name.startswith("val_")},
            )
        self._core.train.report_progress(min(1.0, (epoch + 1) / max(1, self.params["epochs"])))
        if self._lines:
            self._lines.end(self._count.total, numbers)

    def _named_as_searched(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the searcher's metric under its own name if that begins with `val_`.

        Keras's history has such names.
        """
        info = self._core.info
        wanted = (info.trial.config.get("searcher") or {}).get("metric") if info else None
        plain = str(wanted).removeprefix("val_")
        return (
            {**metrics, wanted: metrics[plain]}
            if wanted and wanted not in metrics and plain in metrics
            else metrics
        )

    def _status(self, word: str) -> None:
        if self._is_chief:
            self._core.train.set_status(word)

    def _asked_to_stop(self) -> bool:
        asked = self._core.preempt.should_preempt(auto_ack=False)
        return self._distributed.agree(asked or self._phases.signal.raised)

    # Checkpoints

    def _remind(self) -> None:
        # Callbacks reset their state when training begins, so it is restored only now.
        if self._memories:
            remind(self._neighbours, self._memories)
            self._memories = []

    def _epoch_begins(self) -> None:
        self._remind()
        if self._changes is None:
            # Each process calls `on_train_begin`, which may change the model.
            optimizers = [each for each in (self.model.optimizer,) if each is not None]
            self._changes = Changes(self.model, [*optimizers, *other_optimizers(self.model)])
            self._changes.restore(self._saved_changes)
            self._begun_with = unsaved(self._neighbours, self.model)
        self._trained = trained(self.model)

    def _check_changes(self) -> None:
        """Refuse what callbacks have changed that no checkpoint restores. Note what it keeps."""
        check_trained(self.model, self._trained, "a callback")
        if self._changes is not None:
            self._changes.check()
            self._changes.look(self._count.total)

    def _training_ends(self) -> None:
        """Restore the state of callbacks if no epoch was left to train.

        They need it to act at the end of training.
        """
        self._remind()
        if self._ended and not KERAS_3:
            put_best_weights(self.model, self._neighbours)

    def _epoch_is_trained(self, epoch: int) -> None:
        self._count.end_epoch()
        self._trained = trained(self.model)
        self._left = self.model.get_weights() if overwrites(self._neighbours) else None

    def _epoch_is_over(self, epoch: int) -> None:
        """Save if a checkpoint is due.

        By then every callback has seen the epoch's end. Keras has not ended training yet, when it
        overwrites weights.
        """
        self._check_changes()
        ends = self.model.stop_training or epoch + 1 >= self.params["epochs"]
        if not ends and self._asked_to_stop():
            self._preempted = self.model.stop_training = True
        if (
            ends
            or self._preempted
            or (self._checkpoint_epochs and (epoch + 1) % self._checkpoint_epochs == 0)
        ):
            final = self.model.get_weights() if self._left is not None else None
            self._set_weights(self._left)
            self._save()
            self._set_weights(final)
        self._left = None

    def _set_weights(self, weights: list[Any] | None) -> None:
        if weights is not None:
            self.model.set_weights(weights)

    def _save(self) -> None:
        self._status("checkpointing")
        self._name_unsaved()
        self._name_callbacks()
        metadata = {
            "steps_completed": self._count.total,
            "epochs_completed": self._epochs_before + self._epoch + 1,
        }
        with self._core.checkpoint.store_path(metadata, shard=True) as (path, _):
            self.save_model(self.model, str(path / MODEL), self._distributed)
            self._write_state(_place(path, self._distributed.rank))
            if self._is_chief and self._core.info is not None:
                self._write_code(path / "code")

    def _name_callbacks(self) -> None:
        """Warn once of attributes of callbacks that training changes and no checkpoint holds."""
        before = self._begun_with
        if before is None or not self._is_chief:
            return
        now = unsaved(self._neighbours, self.model)
        changed = [name for name, state in now.items() if before.get(name, state) != state]
        if changed:
            self._begun_with = None
            warnings.warn(
                f"training changes {', '.join(changed[:3])} of callbacks, which no checkpoint of a"
                " script holds: a resumed run begins with it as it is built; define get_state() and"
                " load_state(state), if it matters",
                stacklevel=2,
            )

    def _name_unsaved(self) -> None:
        """Warn once of what the training step changes and no checkpoint holds."""
        model, function = self.model, self.model.train_function
        if self._looked or model.distribute_strategy.num_replicas_in_sync > 1:
            return
        self._looked = True
        optimizers = [
            each for each in (model.optimizer, *other_optimizers(model)) if each is not None
        ]
        saved = [
            *only_variables(model.weights),
            *(v for each in optimizers for v in (*variables_of(each), *computed_by(each))),
            *(variable for metric in model.metrics for variable in metric.variables),
            *Generators(model, self._distributed).variables(),
            *self._attributes().values(),
            *counters_of(model),
        ]
        for problem in find_unsaved(function, saved):
            warnings.warn(problem, stacklevel=2)

    def _write_state(self, directory: Path) -> None:
        directory.mkdir()
        weights = self.model.trainable_variables
        state = {
            "continue_id": self._continue_id,
            "epoch": self._epoch,
            "steps_completed": self._count.total,
            "shape": self._shape(),
            "generators": Generators(self.model, self._distributed).state(),
            "callbacks": memory(self._neighbours),
            "attributes": read_variables(self._attributes()),
            # The files of Keras 2 hold neither.
            "learning_rate": learning_rate_of(self.model.optimizer),
            "loss_scale": [each.numpy() for each in loss_scale_of(self.model.optimizer)],
            "optimizers": [
                optimizer_state(each, weights, self._distributed)
                for each in other_optimizers(self.model)
            ],
            "epochs_before": self._epochs_before,
            "ended": bool(self.model.stop_training) and not self._preempted,
            "over": list(self._phases.over),
            "changes": self._changes.state(self._count.total) if self._changes else {},
        }
        write_state(state, directory)

    def _shape(self) -> Any:
        shape = shape_of(self.model)
        # Not at the restart, when hours may have been trained.
        if shape is None and self._unbuilt and self._is_chief:
            warnings.warn(unbuilt(self.model), stacklevel=2)
        self._unbuilt = False
        return shape

    def _write_code(self, directory: Path) -> None:
        try:
            copy_code(self._code_dir, directory)
        # The script's data may be there. A failed copy must not stop training.
        except DetError as error:
            sys.stderr.write(f"det: the checkpoint has no copy of the code: {error}\n")

    def _restore(self, path: Path) -> None:
        mine, chiefs = (_place(path, rank) for rank in (self._distributed.rank, 0))
        known = (chiefs / STATE).is_file()
        state = read_state(chiefs) if known else {}
        mine_is = state.get("continue_id") == self._continue_id
        if not mine_is and self._continue_id in state.get("over", []):
            self._leave_out("was over before", state.get("shape"))
            return
        # The script continues with the weights of its last fit.
        if not mine_is and self._phases.over:
            return
        if not mine_is:
            self._load(state, path)
            self._say(f"begins at epoch 0 with the model of checkpoint {self._checkpoint}")
            return
        own = read_state(mine) if (mine / STATE).is_file() else state
        self._resume = partial(self._load_training, state, own, path)
        self._resume()
        self._memories = own["callbacks"]
        self._saved_changes = own.get("changes", {})
        self._epoch = int(state["epoch"])
        self._count.before = self._reported = int(state["steps_completed"])
        self._epochs_before, self._ended = state.get("epochs_before", 0), state.get("ended", False)
        start_at(self.model, self.params["epochs"] if self._ended else self._epoch + 1)
        self._say(
            f"goes on after epoch {self._epoch + 1}, batch {self._count.before}, with checkpoint"
            f" {self._checkpoint}"
        )

    def _load_training(self, state: Mapping[str, Any], own: Mapping[str, Any], path: Path) -> None:
        self._load(state, path)
        optimizer = self.model.optimizer
        restore_learning_rate(optimizer, state.get("learning_rate"))
        for variable, value in zip(
            loss_scale_of(optimizer), state.get("loss_scale", []), strict=False
        ):
            variable.assign(value)
        Generators(self.model, self._distributed).restore(own["generators"])
        write_variables(self._attributes(), own.get("attributes", {}))

    def _load(self, state: Mapping[str, Any], path: Path) -> None:
        build(self.model, state.get("shape"))
        states, others = state.get("optimizers", []), other_optimizers(self.model)
        for optimizer, saved in zip(others, states, strict=False):
            build_as_saved(optimizer, saved, self.model.trainable_variables)
        self.load_model(self.model, str(path / MODEL), self._distributed)
        for optimizer, saved in zip(others, states, strict=False):
            restore_optimizer(optimizer, saved)

    def _leave_out(self, why: str, shape: Any) -> None:
        """Make this `fit` train nothing. Keras ends it like any other."""
        # A model that cannot be built has no averages.
        with suppress(TrialError):
            build(self.model, shape)
            build_optimizer(self.model)
        start_at(self.model, self.params["epochs"])
        self._say(f"{self._continue_id!r} {why}: nothing is trained")

    def _attributes(self) -> dict[str, Any]:
        return attributes_of(self.model, Generators(self.model, self._distributed).variables())

    def _say(self, what: str) -> None:
        if self._lines:
            sys.stdout.write(f"training {what}\n")
            sys.stdout.flush()


def _place(path: Path, rank: int) -> Path:
    return path / f"callback_state-{rank}"


def _numbers(logs: Any) -> dict[str, Any]:
    return {
        name: value.numpy() if hasattr(value, "numpy") else value
        for name, value in (logs or {}).items()
    }


def checked_id(continue_id: Any) -> int | str:
    """Return the name of a training. Raises TrialError if it is neither a number nor text."""
    if isinstance(continue_id, bool) or not isinstance(continue_id, (int, str)):
        raise TrialError(
            f"continue_id is {continue_id!r}; give a number or text that names this training"
        )
    return continue_id


def checked_period(period: Any) -> int:
    """Return the number of batches between two reports, or 0 for one report per epoch."""
    if period == "epoch":
        return 0
    if isinstance(period, bool) or not isinstance(period, int) or period < 1:
        raise TrialError(
            f"train_metrics_report_period is {period!r}; give 'epoch', or a number of batches"
        )
    return period


def checked_epochs(epochs: Any) -> int:
    """Return the number of epochs between two checkpoints, or 0 for only the last checkpoint."""
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
        raise TrialError(
            f"checkpoint_epochs is {epochs!r}; give a number of epochs, or 0 to save at the end"
            " only"
        )
    return epochs


class StepCount:
    """Counts the batches trained. Keras does not know how many there are in data of no length.

    `before` counts the batches of complete epochs and of earlier runs. `batch` is the number of the
    last batch that has begun in this epoch, or -1. With several batches at once, it is the first of
    them.
    """

    def __init__(self) -> None:
        self.before = 0
        self.batch = -1
        self._model: Any = None
        self._in_epoch: int | None = None
        # The optimizer's steps when the epoch began.
        self._steps_at_start = 0
        # Whether an epoch was trained in this process.
        self._counted = False

    def begin_epoch(self, model: Any, batches: int | None) -> None:
        """Begin an epoch of so many batches. None means that their number is unknown."""
        self._model, self._in_epoch, self.batch = model, batches, -1
        self._steps_at_start = 0 if batches else steps_trained(model)

    @property
    def total(self) -> int:
        """The number of batches trained, including those of the runs before this one."""
        return self.before if self.batch < 0 else self.before + self._of_epoch(exactly=True)

    def estimate(self) -> int:
        """Return at least `total` within an epoch, without reading a variable of the optimizer."""
        return self.before + self._of_epoch(exactly=False)

    def end_epoch(self) -> None:
        """Add the batches of an epoch that is complete. A second call adds nothing."""
        if self.batch >= 0:
            self.before = self.total if self._in_epoch else self.before + self._find_number()
            self.batch, self._counted = -1, True

    def _of_epoch(self, *, exactly: bool) -> int:
        """Return the number of batches trained in this epoch.

        Data of unknown length may end among several batches that Keras trains at once. Only
        `exactly` sees that.
        """
        most = self.batch + steps_at_once(self._model)
        if self._in_epoch:
            return min(most, int(self._in_epoch))
        if not exactly or most == self.batch + 1:
            return most
        return min(most, (steps_trained(self._model) - self._steps_at_start) or most)

    def _find_number(self) -> int:
        """Return the number of batches in an epoch of data that does not know its length."""
        if steps_at_once(self._model) > 1:
            return self._of_epoch(exactly=True)
        # Keras begins one batch more than there is. Keras 2 does so in the first epoch only.
        missing = (KERAS_3 or not self._counted) and not self._model.stop_training
        return self.batch + (0 if missing else 1)


# The least time between two lines inside an epoch.
_SECONDS = 10.0
_PARTS = 10


class ProgressLines:
    """Writes a line when an epoch ends, and at each tenth of an epoch that takes long."""

    def __init__(self, epochs: int, batches: int | None) -> None:
        self._epochs, self._batches = epochs, batches
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Begin an epoch."""
        self._epoch, self._last = epoch, time.monotonic()
        self._next = self._part(1)

    def batch(self, batch: int) -> None:
        """Begin a batch of the epoch, counted from 0."""
        if self._batches and batch >= self._next:
            if time.monotonic() - self._last >= _SECONDS:
                self._last = time.monotonic()
                self.say(f"{100 * batch // self._batches}% ({batch}/{self._batches} batches)")
            self._next = self._part(_PARTS * batch // self._batches + 1)

    def end(self, batches: int, logs: Mapping[str, Any]) -> None:
        """End the epoch. `batches` counts all batches so far."""
        self.say(
            f"batch {batches}: "
            + " ".join(f"{name}={shown(value)}" for name, value in sorted(logs.items()))
        )

    def say(self, text: str) -> None:
        """Write a line about the epoch."""
        sys.stdout.write(f"epoch {self._epoch + 1}/{self._epochs}, {text}\n")
        sys.stdout.flush()

    def _part(self, part: int) -> float:
        return part * self._batches / _PARTS if self._batches else float("inf")


def shown(value: Any) -> str:
    """Return a metric in few characters."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass
class Phases:
    """The calls of `fit` that a script has made so far under one context.

    - `checkpoint` is the checkpoint that they were given.
    - `begun` has the ids of all calls.
    - `over` has the ids of those that need no more training.
    - `steps` and `epochs` count the training of all.
    - `preempted` says that another process continues the last one.
    - `signal` is raised by a SIGTERM in any of them.
    """

    checkpoint: str | None = None
    begun: list[int | str] = field(default_factory=list)

    over: list[int | str] = field(default_factory=list)
    steps: int = 0
    epochs: int = 0
    preempted: bool = False
    signal: Flag = field(default_factory=Flag)

    @classmethod
    def of(cls, core_context: Any, checkpoint: str | None, continue_id: int | str) -> Phases:
        """Return the phases of a script's context.

        A call with another checkpoint begins new ones. In a run they count on.

        Raises TrialError if the id was used before in a run. Outside a run it is the same training
        once more.
        """
        found: Phases | None = vars(core_context).get("_keras_phases")
        again = found is not None and continue_id in found.begun
        in_run = core_context.info is not None
        if found is None or (not in_run and (again or found.checkpoint != checkpoint)):
            found = cls(checkpoint)
        elif checkpoint not in (None, found.checkpoint):
            found = replace(found, checkpoint=checkpoint, over=[])
        elif again:
            raise TrialError(
                f"two calls of fit() have the continue_id {continue_id!r}; give each its own, such"
                f" as {f'{continue_id}-2'!r}, so that it is known which of them a checkpoint is of"
            )
        found.begun.append(continue_id)
        vars(core_context)["_keras_phases"] = found
        return found
