"""DeterminedCallback: a script's own `model.fit`, reported, saved, paused and resumed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from det_core import DetError, DistributedContext, Flag, TrialError, preempted_by
from det_core.code import copy_code
from det_core.core import Context

from .callback_options import checked_epochs, checked_id, checked_period
from .neighbours import Place, memory, overwrites, refuse_rivals, remind, show_neighbours
from .progress_lines import ProgressLines
from .rng import Generators
from .scripts import build, load_weights, save_weights, shape_of, start_at, steps_at_once
from .state import STATE, read_state, write_state
from .versions import check_backend, keras

MODEL = "model_checkpoint"


class DeterminedCallback(keras.callbacks.ProgbarLogger):  # type: ignore[misc]
    """Reports the metrics of a `fit`, saves it at the end of epochs, ends it when it is preempted, and resumes it.

    `core_context` is what `det_core.core.init()` returned. `checkpoint` is the uuid of the checkpoint to begin with, or None: under
    `det run` that is `latest_checkpoint` of `get_cluster_info()`. `continue_id` names this training, in numbers or text, and is
    written into its checkpoints: where that of `checkpoint` is the same, training goes on at the epoch that follows, else only the
    model is taken from it and training begins at epoch 0. Under `det run` the id of the trial will do.

    Training metrics are reported every `train_metrics_report_period` batches, or "epoch"; checkpoints are saved every
    `checkpoint_epochs` epochs, and always at the end and when preempted; 0 leaves it at that.

    `epochs` of `fit` is the last epoch, also after a resume; `initial_epoch` is set by the checkpoint. Preemption, a SIGTERM
    included, is heeded when an epoch ends. One callback is for one `fit`. It takes the place of Keras's progress bar. Raises
    TrialError beside a BackupAndRestore or a ModelCheckpoint.
    """

    _chief_worker_only = False
    _supports_tf_logs = True
    # Keras waits for the metrics of every batch where a callback looks at them; ours does only if it reports them.
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
        keras.callbacks.Callback.__init__(self)  # of the progress bar only the class is needed: Keras then adds none
        self._core = core_context
        self._distributed: DistributedContext = core_context.distributed
        self._is_chief = self._distributed.rank == 0
        self._checkpoint, self._continue_id = checkpoint, checked_id(continue_id)
        self._report_period = checked_period(train_metrics_report_period)
        self._checkpoint_epochs = checked_epochs(checkpoint_epochs)
        self._code_dir = Path.cwd()
        self._epoch = -1
        self._steps_before = self._reported = 0
        self._batch = -1
        self._begun = self._preempted = False
        self._neighbours: list[Any] = []
        self._left: list[Any] | None = None  # what training left, where a callback may overwrite it
        self._open = ExitStack()
        self._signal = Flag()
        self._memories: list[Any] = []
        self._lines: ProgressLines | None = None
        show_neighbours()
        if self._report_period:
            self._after_batch, self.on_train_batch_end = self.on_train_batch_end, self._report_batch

    # What a script may override

    def save_model(self, model: Any, path: str, distributed: DistributedContext) -> None:
        """Write the model to files whose names begin with `path`; called on every rank, the chief's files are kept.

        By default `{path}.weights.h5`, with the state of the optimizer; `model.load_weights` reads it.
        """
        save_weights(model, path, distributed.rank)

    def load_model(self, model: Any, path: str, distributed: DistributedContext) -> None:
        """Read what `save_model` wrote to `path`; the files are there until the first epoch has ended."""
        load_weights(model, path)

    # Keras's hooks

    def set_neighbours(self, callbacks: list[Any]) -> None:
        """Take note of the callbacks that this one is listed with, and stand before and behind all of them, too."""
        self._neighbours = [each for each in callbacks if each is not self]
        callbacks.insert(0, Place(self._remind, self._epoch_is_trained))
        callbacks.append(Place(lambda: None, self._epoch_is_over))

    def set_params(self, params: dict[str, Any]) -> None:
        keras.callbacks.Callback.set_params(self, params)
        silent = not self._is_chief or params.get("verbose", 0) == 0
        self._lines = None if silent else ProgressLines(params.get("epochs", 1), params.get("steps"))

    def on_train_begin(self, logs: Any = None) -> None:
        if self._begun:
            raise TrialError(
                "a DeterminedCallback serves one fit(); train all epochs in it, or make another for the next"
            )
        self._begun = True
        refuse_rivals(type(self).__name__, self._neighbours)
        self._open.enter_context(preempted_by(self._signal, signal.SIGTERM))
        if self._checkpoint is not None:
            self._status("restoring")
            self._restore(self._open.enter_context(self._core.checkpoint.restore_path(self._checkpoint)))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._steps_before, self._batch = self._steps, -1
        self._epoch = epoch
        self._status("training")
        if self._lines:
            self._lines.begin(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._batch = batch
        if self._lines:
            self._lines.batch(batch)

    def on_test_begin(self, logs: Any = None) -> None:
        self._status("validating")

    def on_test_end(self, logs: Any = None) -> None:
        if self._is_chief:
            self._report("validation", self._named_as_searched(_numbers(logs)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._told(epoch, _numbers(logs))

    def on_train_end(self, logs: Any = None) -> None:
        self._steps_before, self._batch = self._steps, -1
        start_at(self.model, None)
        self._open.close()
        if self._preempted:
            self._core.preempt.acknowledge_preemption_signal()
        self._status("finishing")

    def on_predict_begin(self, logs: Any = None) -> None:
        pass

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        pass

    def on_predict_end(self, logs: Any = None) -> None:
        pass

    # Keras 2 asks which hooks are worth calling.

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False

    # Reports

    @property
    def _steps(self) -> int:
        """The batches trained in all, also in the runs before this one."""
        if self._batch < 0 or self.model is None:
            return self._steps_before
        done = self._batch + steps_at_once(self.model)
        total = self.params.get("steps")
        return self._steps_before + (min(done, total) if total else done)

    def _report(self, group: str, metrics: Mapping[str, Any]) -> None:
        position = {"epochs": self._epoch + 1, "batches": self._steps}
        self._core.train.report_metrics(group, self._steps, {**metrics, **position})

    def _report_batch(self, batch: int, logs: Any = None) -> None:
        before, now = self._reported, self._steps
        if self._is_chief and now // self._report_period > before // self._report_period:
            self._report("training", _numbers(logs))
        self._reported = now
        self._after_batch(batch, logs)

    def _told(self, epoch: int, numbers: dict[str, Any]) -> None:
        """Report, and say, how an epoch went."""
        if not self._is_chief:
            return
        if not self._report_period:
            self._report("training", {name: value for name, value in numbers.items() if not name.startswith("val_")})
        self._core.train.report_progress(min(1.0, (epoch + 1) / max(1, self.params["epochs"])))
        if self._lines:
            self._lines.end(self._steps, numbers)

    def _named_as_searched(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the searcher's metric under its own name where that begins with `val_`, as it does in Keras's history."""
        info = self._core.info
        wanted = (info.trial.config.get("searcher") or {}).get("metric") if info else None
        plain = str(wanted).removeprefix("val_")
        return {**metrics, wanted: metrics[plain]} if wanted and wanted not in metrics and plain in metrics else metrics

    def _status(self, word: str) -> None:
        if self._is_chief:
            self._core.train.set_status(word)

    def _asked_to_stop(self) -> bool:
        asked = self._core.preempt.should_preempt(auto_ack=False)
        return self._distributed.agree(asked or self._signal.raised)

    # Checkpoints

    def _remind(self) -> None:
        if self._memories:  # now, as callbacks forget everything when training begins
            remind(self._neighbours, self._memories)
            self._memories = []

    def _epoch_is_trained(self, epoch: int) -> None:
        self._left = self.model.get_weights() if overwrites(self._neighbours) else None

    def _epoch_is_over(self, epoch: int) -> None:
        """Save where that is due: every callback has heard of the epoch's end, and Keras has not ended training yet, by which it
        overwrites weights."""
        ends = self.model.stop_training or epoch + 1 >= self.params["epochs"]
        if not ends and self._asked_to_stop():
            self._preempted = self.model.stop_training = True
        if ends or self._preempted or (self._checkpoint_epochs and (epoch + 1) % self._checkpoint_epochs == 0):
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
        metadata = {"steps_completed": self._steps, "epochs_completed": self._epoch + 1}
        with self._core.checkpoint.store_path(metadata, shard=True) as (path, _):
            self.save_model(self.model, str(path / MODEL), self._distributed)
            self._write_state(_place(path, self._distributed.rank))
            if self._is_chief and self._core.info is not None:
                self._write_code(path / "code")

    def _write_state(self, directory: Path) -> None:
        directory.mkdir()
        state = {
            "continue_id": self._continue_id,
            "epoch": self._epoch,
            "steps_completed": self._steps,
            "shape": shape_of(self.model),
            "generators": Generators(self.model, self._distributed).state(),
            "callbacks": memory(self._neighbours),
        }
        write_state(state, directory)

    def _write_code(self, directory: Path) -> None:
        try:
            copy_code(self._code_dir, directory)
        except DetError as error:  # the script may have put its data there; its training is worth more than a copy
            sys.stderr.write(f"det: the checkpoint has no copy of the code: {error}\n")

    def _restore(self, path: Path) -> None:
        mine, chiefs = (_place(path, rank) for rank in (self._distributed.rank, 0))
        known = (chiefs / STATE).is_file()
        state = read_state(chiefs) if known else {}
        build(self.model, state.get("shape"))
        self.load_model(self.model, str(path / MODEL), self._distributed)
        if state.get("continue_id") != self._continue_id:
            self._say(f"begins at epoch 0 with the model of checkpoint {self._checkpoint}")
            return
        own = read_state(mine) if (mine / STATE).is_file() else state
        Generators(self.model, self._distributed).restore(own["generators"])
        self._memories = own["callbacks"]
        self._epoch = int(state["epoch"])
        self._steps_before = self._reported = int(state["steps_completed"])
        start_at(self.model, self._epoch + 1)
        self._say(
            f"goes on after epoch {self._epoch + 1}, batch {self._steps_before}, with checkpoint {self._checkpoint}"
        )

    def _say(self, what: str) -> None:
        if self._lines:
            sys.stdout.write(f"training {what}\n")
            sys.stdout.flush()


def _place(path: Path, rank: int) -> Path:
    return path / f"callback_state-{rank}"


def _numbers(logs: Any) -> dict[str, Any]:
    return {name: value.numpy() if hasattr(value, "numpy") else value for name, value in (logs or {}).items()}
