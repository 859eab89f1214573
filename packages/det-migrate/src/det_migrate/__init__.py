"""det-migrate: brings the history of a Determined master into det's store (`det migrate`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from .migration import Options as Options
    from .migration import migrate as migrate
    from .tally import Tally as Tally

__version__ = "0.1.0"

lazy(__name__)
