"""What `det verify` trains again is the same to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.verified import example_is_verified, its_data_is_found_to_differ

pytest.importorskip("sklearn")


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_the_example_is_verified(det: Any) -> None:
    assert example_is_verified(det, "digits_estimator")["checkpoints"]


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_data_that_differs_each_time_is_found_in_its_first_batch(det: Any) -> None:
    its_data_is_found_to_differ(det, "digits_estimator")
