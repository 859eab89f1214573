"""Hugging Face's `Trainer` under `det run`: reports, checkpoints, pause and resume by one callback.

It needs `transformers`, which det-torch does not require: pip install 'det-torch[transformers]'.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from det_core import CheckpointError, TrialError
from det_core.core import Context, DownloadMode

_EVAL = "eval_"
_FINAL = "train_"  # the summary of a whole training, which is not a report at a position
_NO_REPORT = {"epoch", "total_flos"}  # what is left of that


class DetCallback(TrainerCallback):
    """Reports what a `Trainer` logs, keeps what it saves, and ends it when the run is to pause.

    Give it the script's Core API context and the `TrainingArguments`. Where the run goes on from a checkpoint, that is put into
    `args.output_dir` and named by `args.resume_from_checkpoint`, which the script passes on:
    `trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)`. A warm start resumes too: its steps count on.

    `filter_metrics` names the only metrics to report. `user_data` is put into each checkpoint's metadata, as JSON. Raises
    TrialError outside of `det run`.
    """

    def __init__(
        self,
        core_context: Context,
        args: TrainingArguments,
        filter_metrics: list[str] | None = None,
        user_data: Mapping[str, Any] | None = None,
    ) -> None:
        if core_context.info is None:
            raise TrialError("DetCallback reports to det; start the script with det run, or leave the callback out")
        self.core_context = core_context
        self.info = core_context.info
        self._wanted = filter_metrics
        self._user_data = dict(user_data or {})
        self._preempted = False
        if self.info.latest_checkpoint is not None:
            args.resume_from_checkpoint = str(self._restore(self.info.latest_checkpoint, Path(str(args.output_dir))))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Report training metrics, and validation metrics under their names (`eval_loss`)."""
        if not state.is_world_process_zero or not logs:
            return
        shown = {name: value for name, value in logs.items() if self._is_wanted(name)}
        validation = {name: value for name, value in shown.items() if name.startswith(_EVAL)}
        training = {name: value for name, value in shown.items() if not name.startswith((_EVAL, _FINAL))}
        if validation:
            self.core_context.train.report_validation_metrics(state.global_step, validation)
        elif set(training) - _NO_REPORT:
            self.core_context.train.report_training_metrics(state.global_step, training)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Keep the checkpoint that was saved just now."""
        if state.is_world_process_zero:
            directory = Path(str(args.output_dir), f"checkpoint-{state.global_step}")
            metadata = {"steps_completed": state.global_step, "trial_id": self.info.trial.trial_id}
            self.core_context.checkpoint.upload(directory, {**metadata, **self._user_data})
        if self._preempted:
            control.should_training_stop = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save and end where the run is to pause; report how much is done."""
        if (
            state.is_world_process_zero
            and state.max_steps > 0
            and state.global_step % max(1, state.max_steps // 100) == 0
        ):
            self.core_context.train.report_progress(min(1.0, state.global_step / state.max_steps))
        if not self._preempted and self.core_context.preempt.should_preempt():
            self._preempted = True
            control.should_save = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Complete the searcher's operation; a training that was ended by a pause completes nothing."""
        if not self._preempted and state.is_world_process_zero:
            self.core_context.train.report_progress(1.0)

    def _is_wanted(self, name: str) -> bool:
        return self._wanted is None or name in self._wanted

    def _restore(self, uuid: str, output_dir: Path) -> Path:
        """Put the checkpoint where the Trainer looks for its own: the chief of each host does."""
        ranks = self.core_context.distributed
        found = self._put(uuid, output_dir) if ranks.local_rank == 0 else None
        path: Path = ranks.broadcast_local(found)
        return path

    def _put(self, uuid: str, output_dir: Path) -> Path:
        with self.core_context.checkpoint.restore_path(uuid, DownloadMode.NoSharedDownload) as path:
            file = path / "trainer_state.json"
            if not file.exists():
                raise CheckpointError(
                    f"checkpoint {uuid} has no trainer_state.json: it is none of a Trainer; name one that is, or start anew"
                )
            target = output_dir / f"checkpoint-{TrainerState.load_from_json(str(file)).global_step}"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(path, target)
        return target
