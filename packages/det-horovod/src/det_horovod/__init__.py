"""Horovod for ranks that det started, with any framework: rendezvous, settings, installation.

Importing this package does not import Horovod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_core.support.lazy import lazy

if TYPE_CHECKING:
    from ._frameworks import available as available
    from ._meet import Begun as Begun
    from ._meet import meet as meet
    from ._meet import settings as settings
    from ._rendezvous import Rendezvous as Rendezvous
    from ._rendezvous import Slot as Slot
    from ._rendezvous import address_variables as address_variables
    from ._rendezvous import horovod_slots as horovod_slots

__version__ = "0.1.0"
lazy(__name__)
