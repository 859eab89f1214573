"""Keras keeps the contract of adapters."""

from __future__ import annotations

import pytest
from tests.contract.oracle import Oracle

from det_testing import AdapterSuite

pytest.importorskip("tensorflow")
pytest.importorskip("det_keras")


class TestKeras(Oracle, AdapterSuite):
    oracle = "tests.contract.keras_variants"
    label = "keras"

    @pytest.fixture
    def trial(self) -> type:
        from det_keras.testing import OneVarTrial

        return OneVarTrial
