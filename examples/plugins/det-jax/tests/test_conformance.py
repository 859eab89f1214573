"""det-jax keeps the contract of adapters."""

from __future__ import annotations

import pytest
from det_jax.testing import OneVarTrial

from det_testing import AdapterSuite


class TestJax(AdapterSuite):
    @pytest.fixture
    def trial(self) -> type:
        return OneVarTrial
