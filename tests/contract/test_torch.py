"""PyTorch keeps the contract of adapters."""

from __future__ import annotations

from typing import Any

import pytest

from det_testing import AdapterSuite

pytest.importorskip("det_torch")


class TestTorch(AdapterSuite):
    label = "torch"

    @pytest.fixture
    def trial(self) -> type:
        from det_torch.testing import OneVarTrial

        return OneVarTrial

    @pytest.fixture
    def variants(self) -> dict[str, type]:
        from tests.contract.torch_variants import OF_TORCH

        return OF_TORCH

    @pytest.fixture
    def evaluate(self) -> Any:
        from tests.contract.torch_variants import evaluate

        return evaluate

    @pytest.fixture
    def plain(self) -> Any:
        from tests.contract.torch_variants import plain

        return plain
