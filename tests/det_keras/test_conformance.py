"""Keras keeps the contract of adapters, whatever kind of data a trial has, and however many batches it runs in one go."""

from __future__ import annotations

from typing import Any

import pytest

from det_core.testing import AdapterSuite

pytest.importorskip("tensorflow")


class TestKeras(AdapterSuite):
    label = "keras"

    @pytest.fixture
    def trial(self) -> type:
        from det_keras.testing import OneVarTrial

        return OneVarTrial
