"""The order in which experiments that share devices get them, as a pure function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from ._schedule import AGING_SECONDS as AGING_SECONDS
    from ._schedule import DEFAULT_PRIORITY as DEFAULT_PRIORITY
    from ._schedule import HALF_LIFE_SECONDS as HALF_LIFE_SECONDS
    from ._schedule import TURN_SECONDS as TURN_SECONDS
    from ._schedule import Decision as Decision
    from ._schedule import Holding as Holding
    from ._schedule import Request as Request
    from ._schedule import decayed as decayed
    from ._schedule import decide as decide
    from ._schedule import in_order as in_order
    from ._schedule import negligible_after as negligible_after
    from ._schedule import used as used

lazy(__name__)
