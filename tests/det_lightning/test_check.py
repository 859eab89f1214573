"""`det check` of a trial whose schedule is made from the length of training."""

from __future__ import annotations

from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_lightning"


def test_a_check_shows_the_framework_the_length_that_a_run_would_have(det) -> None:
    """OneCycleLR is made from `trainer.estimated_stepping_batches`, which is infinite where no length is known."""
    assert "restored it and trained on\n" in det("check", EXAMPLE / "const.yaml").stdout
