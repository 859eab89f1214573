"""The life of an experiment: created once, driven until it ends, by one driver after another if need be."""

from __future__ import annotations

from ._collect import storage_of
from ._commands import ask, is_driven, start_driver
from ._create import create
from ._driver import Driver
from ._orphan import orphaned
from ._reopen import reopen
from ._settings import DriverSettings
from ._settle import Failures
from ._slots import check_slots
from ._unit import unit_of
from ._views import ExperimentView

__all__ = [
    "Driver",
    "DriverSettings",
    "ExperimentView",
    "Failures",
    "ask",
    "check_slots",
    "create",
    "is_driven",
    "orphaned",
    "reopen",
    "start_driver",
    "storage_of",
    "unit_of",
]
