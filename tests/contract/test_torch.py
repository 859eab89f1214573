"""PyTorch keeps the contract of adapters."""

from __future__ import annotations

import pytest

from det_testing import AdapterSuite

pytest.importorskip("det_torch")


class TestTorch(AdapterSuite):
    label = "torch"

    @pytest.fixture
    def trial(self) -> type:
        from det_torch.testing import OneVarTrial

        return OneVarTrial
