"""Integrates Hugging Face's `Trainer` with `det run`: one callback for reports, checkpoints, pause
and resume.

It needs `transformers`, which the extra `transformers` of det-torch installs.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from det_core import CheckpointError, TrialError
from det_core.checkpoint import read_json_object
from det_core.core import Context, DownloadMode

__all__ = ["DetCallback"]

_EVAL = "eval_"
# The prefix of the summary of a whole training, which is not a report at a position.
_FINAL = "train_"
# The key in the metadata for the uuid of the best checkpoint, if it is another one.
_BEST = "best_checkpoint"
# Names that the summary has without the prefix.
_NO_REPORT = {"epoch", "total_flos"}


class DetCallback(TrainerCallback):
    """Reports what a `Trainer` logs, uploads its checkpoints, and stops it when the run shall
    pause.

    Pass the script's Core API context and the `TrainingArguments`. If the run continues from a
    checkpoint, this checkpoint and the best one are copied to `args.output_dir`.
    `args.resume_from_checkpoint` then names the former. The script must pass it on:
    `trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)`. A warm start resumes in the
    same way, and its steps are counted on from the checkpoint.

    `filter_metrics` names the only metrics to report. `user_data` is added to each checkpoint's
    metadata as JSON. Raises TrialError outside of `det run`.
    """

    def __init__(
        self,
        core_context: Context,
        args: TrainingArguments,
        filter_metrics: list[str] | None = None,
        user_data: Mapping[str, Any] | None = None,
    ) -> None:
        if core_context.info is None:
            raise TrialError(
                "DetCallback reports to det; start the script with det run, or leave the"
                " callback out"
            )
        self.core_context = core_context
        self.info = core_context.info
        self._wanted = filter_metrics
        self._user_data = dict(user_data or {})
        self._preempted = False
        # The uuids of the checkpoints in output_dir, by name.
        self._uuids: dict[str, str] = {}
        # The position from which this training counts.
        self._offset = 0
        latest = None if core_context.fits.is_later else self.info.latest_checkpoint
        self._continues = latest is not None
        if latest is not None:
            args.resume_from_checkpoint = str(self._restore(latest, Path(str(args.output_dir))))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count on from the trainings that this script has done before."""
        if self._continues and self.core_context.fits.is_later:
            raise TrialError(
                "make the DetCallback of a second Trainer when the first one has trained, as the"
                " run's checkpoint is of the first"
            )
        self._offset = self.core_context.fits.begin(chief=state.is_world_process_zero)

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
        training = {
            name: value for name, value in shown.items() if not name.startswith((_EVAL, _FINAL))
        }
        if validation:
            self.core_context.train.report_validation_metrics(
                self._offset + state.global_step, validation
            )
        elif set(training) - _NO_REPORT:
            self.core_context.train.report_training_metrics(
                self._offset + state.global_step, training
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Upload the checkpoint that was just saved."""
        if state.is_world_process_zero:
            directory = Path(str(args.output_dir), f"checkpoint-{state.global_step}")
            metadata = {
                "steps_completed": self._offset + state.global_step,
                "trial_id": self.info.trial.trial_id,
                **self.core_context.fits.metadata(),
            }
            best = self._uuids.get(Path(state.best_model_checkpoint or "").name)
            more = {_BEST: best} if best else {}
            self._uuids[directory.name] = self.core_context.checkpoint.upload(
                directory, {**metadata, **more, **self._user_data}
            )
        if self._preempted:
            control.should_training_stop = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report the progress. Save and stop if the run shall pause."""
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
        """Report a progress of 1, unless a pause ended the training."""
        if not self._preempted and state.is_world_process_zero:
            self.core_context.train.report_progress(1.0)

    def _is_wanted(self, name: str) -> bool:
        return self._wanted is None or name in self._wanted

    def _restore(self, uuid: str, output_dir: Path) -> Path:
        """Copy the checkpoint to where the Trainer looks for its own.

        The chief of each host does this.
        """
        ranks = self.core_context.distributed
        if self.info.steps_completed:
            self.core_context.fits.check(self.core_context.checkpoint.get_metadata(uuid))
        found = self._put(uuid, output_dir) if ranks.local_rank == 0 else None
        path: Path = ranks.broadcast_local(found)
        return path

    def _put(self, uuid: str, output_dir: Path) -> Path:
        """Copy a checkpoint, and the best one that it names, to `output_dir`."""
        with self.core_context.checkpoint.restore_path(uuid, DownloadMode.NoSharedDownload) as path:
            file = path / "trainer_state.json"
            if not file.exists():
                raise CheckpointError(
                    f"checkpoint {uuid} has no trainer_state.json: it is none of a Trainer; name"
                    " one that is, or start again"
                )
            state = TrainerState.load_from_json(str(file))
            target = output_dir / f"checkpoint-{state.global_step}"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(path, target)
        self._uuids[target.name] = uuid
        if state.best_model_checkpoint:
            # This run may have another output_dir, on another machine.
            best = output_dir / Path(state.best_model_checkpoint).name
            state.best_model_checkpoint = str(best)
            state.save_to_json(str(target / file.name))
            if best != target and (other := _metadata(target).get(_BEST)):
                # If the best checkpoint was deleted, the Trainer warns and ends with the
                # last weights.
                with suppress(CheckpointError):
                    self._put(other, output_dir)
        return target


def _metadata(directory: Path) -> dict[str, Any]:
    file = directory / "metadata.json"
    return read_json_object(file) if file.is_file() else {}
