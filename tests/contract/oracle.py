"""The framework alone, as the conformance suite asks for it.

From the module that has a framework's variants.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import pytest


class Oracle:
    """Gives a suite the fixtures of the module `oracle`, which is imported when a test asks.

    It imports its framework.
    """

    oracle: ClassVar[str]

    @pytest.fixture
    def variants(self) -> dict[str, type | str]:
        return dict(import_module(self.oracle).VARIANTS)

    @pytest.fixture
    def evaluate(self) -> Any:
        return import_module(self.oracle).evaluate

    @pytest.fixture
    def plain(self) -> Any:
        return import_module(self.oracle).plain
