"""Horovod for ranks that det started, whatever their framework: the meeting, the settings, the installation.

Importing this imports no Horovod.
"""

from __future__ import annotations

from ._frameworks import available
from ._meet import Begun, Meeting, horovod_slots, meet, settings
from ._rendezvous import Rendezvous, Slot, address_variables

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
