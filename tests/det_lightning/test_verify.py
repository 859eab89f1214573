"""What `det verify` trains again is the same to the last bit."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from tests.support.verified import EXAMPLES, example_is_verified

pytest.importorskip("sklearn")


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_the_example_is_verified(det: Any) -> None:
    assert example_is_verified(det, "digits_lightning")["checkpoints"]


@pytest.mark.thorough
@pytest.mark.timeout(240)
def test_a_script_is_verified_as_a_trial_class_is(det: Any) -> None:
    shutil.copytree(EXAMPLES / "script_lightning", det.cwd / "script")
    det("run", det.cwd / "script/const.yaml", "--quiet")
    said = det.json("verify", "1")
    assert (said["same"], said["difference"], said["causes"]) == (True, None, [])
    assert said["reports"] >= 2
    assert said["checkpoints"]
