"""`det check` of a trial whose schedule is made from the length of training."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_lightning"


@pytest.mark.thorough
def test_check_gives_the_framework_the_length_of_a_run(det) -> None:
    """OneCycleLR is made from `trainer.estimated_stepping_batches`.

    That is infinite where no length is known.
    """
    assert "restored it and trained on\n" in det("check", EXAMPLE / "const.yaml").stdout
