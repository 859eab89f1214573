"""Best practices as rules, which are checked in an experiment's code without running it."""

from __future__ import annotations

from ._linter import RULES, chosen, explained, lint
from ._sources import Finding, Rule

__all__ = ["RULES", "Finding", "Rule", "chosen", "explained", "lint"]
