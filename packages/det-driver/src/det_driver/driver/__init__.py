"""The life of an experiment: created once, driven until it ends, by one driver after another if need be."""

from __future__ import annotations

from ._apart import start_driver, submit_driver
from ._driver import Driver
from ._endings import ExperimentFailures
from ._environment import (
    CHECKED,
    SolvedEnvironment,
    environment_of,
    environments_dir,
    imports_of,
    interpreter_for,
    interpreter_of,
    solving,
)
from ._environment import recorded as recorded_environment
from ._garbage import collect_left
from ._lifecycle import ask, create, describe, dismiss, give_up, probe_of, reopen, waits_for
from ._search import UNITS, AskedLength, ExperimentView, decode_event, lengths_asked, searcher_of, unit_of
from ._starting import DriverSettings, check_startable, threads_of

__all__ = [
    "CHECKED",
    "UNITS",
    "AskedLength",
    "Driver",
    "DriverSettings",
    "ExperimentFailures",
    "ExperimentView",
    "SolvedEnvironment",
    "ask",
    "check_startable",
    "collect_left",
    "create",
    "decode_event",
    "describe",
    "dismiss",
    "environment_of",
    "environments_dir",
    "give_up",
    "imports_of",
    "interpreter_for",
    "interpreter_of",
    "lengths_asked",
    "probe_of",
    "recorded_environment",
    "reopen",
    "searcher_of",
    "solving",
    "start_driver",
    "submit_driver",
    "threads_of",
    "unit_of",
    "waits_for",
]
