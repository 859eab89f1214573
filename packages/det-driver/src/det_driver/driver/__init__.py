"""The life of an experiment: created once, and driven until it ends, by one or more drivers."""

from __future__ import annotations

from ._alerts import AlertSender
from ._deleting import Deleter
from ._detached import DRIVERS_HERE, start_driver, submit_driver
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
from ._fork_server import DriverForkServer
from ._garbage import collect_left
from ._lifecycle import (
    begin_journal,
    cancel_trial,
    create,
    describe,
    make_probe,
    reopen,
    replace_code,
    resume_from_checkpoint,
    send_command,
    steer,
    stop_detached,
    waits_for,
)
from ._search import (
    UNITS,
    AskedLength,
    ExperimentView,
    SearchSteered,
    lengths_asked,
    read_event,
    searcher_of,
    unit_of,
)
from ._starting import DriverSettings, check_runnable, check_startable, recorded_threads
from ._webhooks import SendingFailed, send_alert

__all__ = [
    "CHECKED",
    "DRIVERS_HERE",
    "UNITS",
    "AlertSender",
    "AskedLength",
    "Deleter",
    "Driver",
    "DriverForkServer",
    "DriverSettings",
    "ExperimentFailures",
    "ExperimentView",
    "SearchSteered",
    "SendingFailed",
    "SolvedEnvironment",
    "begin_journal",
    "cancel_trial",
    "check_runnable",
    "check_startable",
    "collect_left",
    "create",
    "describe",
    "environment_of",
    "environments_dir",
    "imports_of",
    "interpreter_for",
    "interpreter_of",
    "lengths_asked",
    "make_probe",
    "read_event",
    "recorded_environment",
    "recorded_threads",
    "reopen",
    "replace_code",
    "resume_from_checkpoint",
    "searcher_of",
    "send_alert",
    "send_command",
    "solving",
    "start_driver",
    "steer",
    "stop_detached",
    "submit_driver",
    "unit_of",
    "waits_for",
]
