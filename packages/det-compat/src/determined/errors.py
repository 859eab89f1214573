"""Errors with the names that Determined gave them. All are ordinary exceptions here."""

from __future__ import annotations

from typing import Any

from ._names import borrow

_get, __dir__ = borrow(
    __name__,
    {
        "det_core": {
            "InternalException": "DetError",
            "InvalidCheckpointException": "CheckpointError",
            "InvalidConfigurationException": "ConfigError",
            "InvalidDataTypeException": "TrialError",
            "InvalidExperimentException": "TrialError",
            "InvalidHP": "InvalidHP",
            "InvalidModelException": "TrialError",
        }
    },
)


def __getattr__(name: str) -> Any:
    return _get(name)
