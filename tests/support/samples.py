"""Leaves the cases of a test that are not in its sample to campaigns."""

from __future__ import annotations

from collections import Counter

import pytest

COLLECTED = pytest.StashKey[Counter[str]]()
"""How many cases of each test with the mark `sample` have been collected."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the cases after the first n of a test with the mark `sample(n)` as thorough."""
    sample = item.get_closest_marker("sample")
    if sample is None:
        return
    collected = item.session.stash.setdefault(COLLECTED, Counter())
    test = item.nodeid.partition("[")[0]
    collected[test] += 1
    if collected[test] > (sample.args[0] if sample.args else 1):
        item.add_marker(pytest.mark.thorough)
