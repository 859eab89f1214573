"""`context.experimental`: names that Determined's users wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core import TrialError

if TYPE_CHECKING:
    from .context import PyTorchTrialContext


class Experimental:
    """What Determined called experimental."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self._context = context

    def use_amp(self) -> None:
        """Train in half precision with a gradient scaler that det drives; call it before `wrap_model`."""
        if self._context.models:
            raise TrialError("experimental.use_amp() comes before wrap_model(); move it up")
        self._context.precision.use("fp16")

    def disable_dataset_reproducibility_checks(self) -> None:
        """Do nothing: torch's own loaders are accepted, and resumed exactly where that is possible."""

    def disable_auto_to_device(self) -> None:
        """Hand batches to the trial as the loader gives them."""
        self._context.auto_to_device = False
