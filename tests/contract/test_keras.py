"""Keras keeps the contract of adapters."""

from __future__ import annotations

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
