"""PyTorch keeps the contract of adapters."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.oracle import Oracle

from det_testing import AdapterSuite

pytest.importorskip("det_torch")


class TestTorch(Oracle, AdapterSuite):
    oracle = "tests.contract.torch_variants"
    label = "torch"

    @pytest.fixture
    def trial(self) -> type:
        from det_torch.testing import OneVarTrial

        return OneVarTrial

    @pytest.fixture
    def strict_trial(self) -> type:
        from det_torch.testing import StrictTrial

        return StrictTrial

    @pytest.fixture
    def contents(self) -> Any:
        from det_torch.testing import contents

        return contents
