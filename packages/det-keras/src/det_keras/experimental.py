"""What may change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context import TFKerasTrialContext


class Experimental:
    """`context.experimental`."""

    def __init__(self, context: TFKerasTrialContext) -> None:
        self._context = context
