"""What `det verify` trains again is the same to the last bit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.verified import example_is_verified

pytest.importorskip("sklearn")


@pytest.mark.timeout(240)
def test_the_example_is_verified(det: Any) -> None:
    assert example_is_verified(det, "digits_estimator")["checkpoints"]
