"""PyTorch keeps the contract of adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from det_core.testing import AdapterSuite

pytest.importorskip("det_torch")


class TestTorch(AdapterSuite):
    label = "torch"
    expected_failures: ClassVar[Mapping[str, str]] = {
        "test_resumes_between_aggregated_gradients": "gradients that wait for their step are not in the checkpoint"
    }

    @pytest.fixture
    def trial(self) -> type:
        from det_torch.testing import OneVarTrial

        return OneVarTrial
