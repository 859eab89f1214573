"""Records scripts that det did not start: each is an experiment of a home, and of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from ._experiment import RecordedExperiment as RecordedExperiment
    from ._script import record as record
    from ._sending import MOST_BYTES as MOST_BYTES
    from ._sending import PATH as PATH
    from ._sending import Outgoing as Outgoing
    from ._sending import Sent as Sent
    from ._sending import recordings as recordings
    from ._sending import sync as sync
    from ._sending import wanted_recordings as wanted_recordings
    from ._taking import Accepted as Accepted
    from ._taking import Owner as Owner
    from ._taking import Receiver as Receiver
    from ._taking import Taking as Taking

lazy(__name__)
