"""Reading the configuration of an experiment: from files, templates and options, with the place of every mistake."""

from __future__ import annotations

from ._code import check_entrypoint, likely_entrypoint
from ._load import Loaded, load
from ._schema import docs_of, schema
from ._sentences import expected
from ._yaml import to_yaml

__all__ = ["Loaded", "check_entrypoint", "docs_of", "expected", "likely_entrypoint", "load", "schema", "to_yaml"]
