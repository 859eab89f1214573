"""Lightning keeps the contract of adapters."""

from __future__ import annotations

from typing import ClassVar

import pytest

from det_core.testing import AdapterSuite

pytest.importorskip("det_lightning")
pytest.importorskip("lightning")


class TestLightning(AdapterSuite):
    label = "lightning"
    expected_failures: ClassVar[dict[str, str]] = dict.fromkeys(
        ("test_gradients_are_aggregated", "test_two_ranks_aggregate_gradients"),
        "Lightning steps behind the last batch of an epoch too",
    )

    @pytest.fixture
    def trial(self) -> type:
        from det_lightning.testing import OneVarTrial

        return OneVarTrial
