"""What a DeterminedCallback may be given."""

from __future__ import annotations

from typing import Any

from det_core import TrialError


def checked_id(continue_id: Any) -> int | str:
    """Return the name of a training. Raises TrialError for what is neither a number nor text."""
    if isinstance(continue_id, bool) or not isinstance(continue_id, (int, str)):
        raise TrialError(f"continue_id is {continue_id!r}; give a number or text that names this training")
    return continue_id


def checked_period(period: Any) -> int:
    """Return the batches between two reports, 0 for an epoch."""
    if period == "epoch":
        return 0
    if isinstance(period, bool) or not isinstance(period, int) or period < 1:
        raise TrialError(f"train_metrics_report_period is {period!r}; give 'epoch', or a number of batches")
    return period


def checked_epochs(epochs: Any) -> int:
    """Return the epochs between two checkpoints, 0 for none but the last."""
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
        raise TrialError(f"checkpoint_epochs is {epochs!r}; give a number of epochs, or 0 to save at the end only")
    return epochs
