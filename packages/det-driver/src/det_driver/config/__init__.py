"""Reads the configuration of an experiment from files, templates and options.

Errors name the place of every mistake.
"""

from __future__ import annotations

from ._alerts import ALERTS, AlertKind, AlertSettings, Smtp, Webhook, read_alerts
from ._code import check_entrypoint, check_syntax, likely_entrypoint
from ._load import Loaded, load, mask_text
from ._preferences import Preferences, preferable, without_keys
from ._schema import docs_of, schema
from ._sentences import expected
from ._yaml import parse_yaml, to_yaml

__all__ = [
    "ALERTS",
    "AlertKind",
    "AlertSettings",
    "Loaded",
    "Preferences",
    "Smtp",
    "Webhook",
    "check_entrypoint",
    "check_syntax",
    "docs_of",
    "expected",
    "likely_entrypoint",
    "load",
    "mask_text",
    "parse_yaml",
    "preferable",
    "read_alerts",
    "schema",
    "to_yaml",
    "without_keys",
]
