"""Keras keeps the contract of adapters."""

from __future__ import annotations

from typing import Any

import pytest

from det_testing import AdapterSuite

pytest.importorskip("tensorflow")
pytest.importorskip("det_keras")


class TestKeras(AdapterSuite):
    label = "keras"

    @pytest.fixture
    def trial(self) -> type:
        from det_keras.testing import OneVarTrial

        return OneVarTrial

    @pytest.fixture
    def variants(self) -> dict[str, type]:
        from tests.contract.keras_variants import OF_KERAS

        return OF_KERAS

    @pytest.fixture
    def evaluate(self) -> Any:
        from tests.contract.keras_variants import evaluate

        return evaluate

    @pytest.fixture
    def plain(self) -> Any:
        from tests.contract.keras_variants import plain

        return plain
