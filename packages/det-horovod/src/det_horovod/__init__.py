"""Horovod for ranks that det started, whatever their framework: the meeting, the settings, the installation.

Importing this imports no Horovod.
"""

from __future__ import annotations

from ._available import available
from ._begun import Begun
from ._meet import Meeting, horovod_slots, meet
from ._rendezvous import Rendezvous, Slot, address_variables
from ._settings import settings

__all__ = [
    "Begun",
    "Meeting",
    "Rendezvous",
    "Slot",
    "address_variables",
    "available",
    "horovod_slots",
    "meet",
    "settings",
]
