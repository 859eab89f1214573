"""The contract of each framework is in the gate, although its ranks are processes."""

from __future__ import annotations

from pathlib import Path

import pytest

OTHER = {"slow", "thorough"}
USUAL = 3
"""The position after which two ranks of the strict trial are resumed every day: an epoch's end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is below this folder, unless it takes long."""
    here = Path(__file__).parent
    for item in items:
        if getattr(item, "callspec", None) and item.callspec.params.get("position", USUAL) != USUAL:
            item.add_marker(pytest.mark.thorough)
        if item.path.is_relative_to(here) and not any(map(item.get_closest_marker, OTHER)):
            item.add_marker(pytest.mark.gate)
