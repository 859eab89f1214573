"""Keras keeps the contract of adapters."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.oracle import Oracle
from tests.support.tf_data import disable_autotune

from det_testing import AdapterSuite

pytest.importorskip("tensorflow")
pytest.importorskip("det_keras")


@pytest.fixture(scope="module", autouse=True)
def _iterators_tune_nothing() -> None:
    disable_autotune()


class TestKeras(Oracle, AdapterSuite):
    oracle = "tests.contract.keras_variants"
    label = "keras"

    @pytest.fixture
    def trial(self) -> type:
        from det_keras.testing import OneVarTrial

        return OneVarTrial

    @pytest.fixture
    def strict_trial(self) -> type:
        from det_keras.testing import StrictTrial

        return StrictTrial

    @pytest.fixture
    def strict_settings(self) -> dict[str, Any]:
        return {"aggregation": 2}

    @pytest.fixture
    def contents(self) -> Any:
        from det_keras.testing import contents

        return contents
