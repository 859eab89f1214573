"""What a script that is its own experiment may ask of its run."""

from __future__ import annotations

from det_core.trial_context import TrialContext

from ._begin import Place


class NativeContext(TrialContext):
    """Hyperparameters, batch sizes, ids and the data's configuration; a plugin's own derives from it.

    `place` says where the script finds itself.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place.run)
        self.place = place
