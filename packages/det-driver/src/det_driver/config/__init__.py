"""Reading the configuration of an experiment: from files, templates and options, with the place of every mistake."""

from __future__ import annotations

from ._load import Loaded, load
from ._merge import merge
from ._overrides import apply_overrides
from ._schema import docs_of, schema
from ._words import expected
from ._yaml import to_yaml

__all__ = ["Loaded", "apply_overrides", "docs_of", "expected", "load", "merge", "schema", "to_yaml"]
