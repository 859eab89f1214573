"""Lightning keeps the contract of adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.contract.oracle import Oracle

from det_core import Plugins
from det_testing import AdapterSuite, Runs

pytest.importorskip("det_lightning")
pytest.importorskip("lightning")


class TestLightning(Oracle, AdapterSuite):
    oracle = "tests.contract.lightning_variants"
    label = "lightning"
    expected_failures: ClassVar[dict[str, str]] = dict.fromkeys(
        ("test_gradients_are_aggregated", "test_two_ranks_aggregate_gradients"),
        "Lightning steps behind the last batch of an epoch too",
    )

    @pytest.fixture
    def trial(self) -> type:
        from det_lightning.testing import OneVarTrial

        return OneVarTrial

    @pytest.fixture
    def strict_trial(self) -> type:
        from det_lightning.testing import StrictTrial

        return StrictTrial

    @pytest.fixture
    def contents(self) -> Any:
        from det_lightning.testing import contents

        return contents


def test_its_losses_are_det_torchs(tmp_path: Path) -> None:
    """Bit for bit, with noise and in shuffled order.

    The same seed, the same data, the same steps.
    """
    from det_lightning.testing import OneVarTrial as Lightning
    from det_torch.testing import OneVarTrial as Torch

    plugins = Plugins.installed(strict=True)
    one, other = (Runs(plugins, trial, tmp_path / trial.__module__) for trial in (Lightning, Torch))
    plain = {"noise": 0.5, "shuffle": True}
    assert one(12, **plain).losses == other(12, **plain).losses
