"""What a trial is given: its hyperparameters, and where it trains."""

from __future__ import annotations

from pathlib import Path

from det_core import RunInfo, TrialContext


class LightningTrialContext(TrialContext):
    """The context of a `LightningAdapter`.

    With `managed` false (a trial that is loaded to be used, not trained) no trainer is made.
    """

    def __init__(self, run: RunInfo, *, managed: bool = True) -> None:
        super().__init__(run)
        self.managed = managed

    @property
    def run(self) -> RunInfo:
        """The run that this is the context of."""
        return self._run

    def get_tensorboard_path(self) -> Path | None:
        """Return the directory for event files, such as for `TensorBoardLogger`; None where the run has none."""
        return self._run.tensorboard_dir
