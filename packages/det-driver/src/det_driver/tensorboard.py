"""Write metrics as TensorBoard event files, if `tensorboard` is installed.

If `checkpoint_storage` names a storage, a trial's files are copied there as `tensorboard-<uuid>`
after each of its runs, whatever the outcome. A thread copies them, as the driver must not wait for
a slow storage.

Tags:

- `Determined/<name>` for training metrics.
- `Determined/val_<name>` for validation metrics. A name that begins with `val` has no prefix.
- `<group>/<name>` for other groups.

Files go to `tensorboard/trial-<id>` in the experiment's directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_core.hooks.hookspecs import hookimpl
from det_core.train.tensorboard import MANUAL, EventFile, upload

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


RECORD_WRITER = "tensorboard.summary.writer.record_writer"


class TensorBoard:
    """The observer. It has one file for each trial, opened at its first report.

    Without `tensorboard` it only copies files.
    """

    def __init__(self) -> None:
        self._files: dict[int, EventFile] = {}
        self._copies: ThreadPoolExecutor | None = None

    if find_spec("tensorboard") is not None:

        @hookimpl
        def det_experiment_started(self, experiment: Any) -> None:
            # Import now, so that the first report does not wait for it.
            import_module(RECORD_WRITER)

        @hookimpl
        def det_metrics_reported(
            self,
            experiment: Any,
            trial_id: int,
            group: str,
            batches: int,
            metrics: Mapping[str, Any],
        ) -> None:
            if trial_id not in self._files:
                self._files[trial_id] = EventFile(
                    Path(experiment.tensorboard_dir) / f"trial-{trial_id}"
                )
            self._files[trial_id].add(group, batches, metrics)

    @hookimpl
    def det_run_finished(self, experiment: Any, trial: Any, run: Any, outcome: str) -> None:
        if file := self._files.pop(trial.id, None):
            file.close()
        if getattr(experiment.config.checkpoint_storage, "type", None) is not None:
            from concurrent.futures import ThreadPoolExecutor

            self._copies = self._copies or ThreadPoolExecutor(1, "det-tensorboard")
            self._copies.submit(_copy, experiment, trial.id)

    @hookimpl
    def det_experiment_finished(self, experiment: Any, state: str) -> None:
        if self._copies is not None:
            self._copies.shutdown()
            self._copies = None


def _copy(experiment: Any, trial: int) -> None:
    directory = Path(experiment.tensorboard_dir) / f"trial-{trial}"
    try:
        if (directory / MANUAL).exists() or not any(
            path.is_file() for path in directory.rglob("*")
        ):
            return
        upload(experiment.storage(), directory)
    except Exception as error:
        # The run has ended and its checkpoints are saved, so a failed copy is no failure.
        from det_node.launch import say

        say(
            f"the TensorBoard files of trial {trial} were not copied to checkpoint storage:"
            f" {error}; they are in {directory}"
        )
