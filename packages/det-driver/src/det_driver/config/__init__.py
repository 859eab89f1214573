"""Reading the configuration of an experiment: from files, templates and options, with the place of every mistake."""

from __future__ import annotations

from ._load import Loaded, load
from ._schema import docs_of, schema
from ._sentences import expected
from ._yaml import to_yaml

__all__ = ["Loaded", "docs_of", "expected", "load", "schema", "to_yaml"]
