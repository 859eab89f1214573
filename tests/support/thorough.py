"""Which parameters of a test are for every day, and which for a campaign."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sample(every: Iterable[str], usual: Iterable[str]) -> list[Any]:
    """Return the parameters of a test: those that are not `usual` are for `nox -s thorough`."""
    usual = set(usual)
    return [
        each if each in usual else pytest.param(each, marks=pytest.mark.thorough) for each in every
    ]
