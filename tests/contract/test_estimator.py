"""TensorFlow's Estimator keeps the contract of adapters."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.contract.oracle import Oracle

from det_testing import AdapterSuite

pytest.importorskip("det_estimator")
if sys.version_info[:2] != (3, 11):
    pytest.skip("TensorFlow 2.15 is for Python 3.11", allow_module_level=True)
pytest.importorskip("tensorflow_estimator", reason="later TensorFlows have no estimators")


class TestEstimator(Oracle, AdapterSuite):
    oracle = "tests.contract.estimator_variants"
    label = "estimator"

    @pytest.fixture
    def trial(self) -> type:
        from det_estimator.testing import OneVarTrial

        return OneVarTrial

    @pytest.fixture
    def strict_trial(self) -> type:
        from det_estimator.testing import StrictTrial

        return StrictTrial

    @pytest.fixture
    def strict_settings(self) -> dict[str, Any]:
        return {"aggregation": 2}

    @pytest.fixture
    def contents(self) -> Any:
        from det_estimator.testing import contents

        return contents
