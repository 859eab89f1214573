"""What `det verify` names as changed since a trial trained."""

from __future__ import annotations

from pathlib import Path

from det_core.support.origin import packages
from det_driver.verify._spec import Seen
from det_driver.verify._verify import changes


def test_another_number_of_threads_is_named_for_each_kind(tmp_path: Path) -> None:
    """An origin of before the number was kept names none."""
    recorded = {"packages": packages(), "threads": "2", "tensorflow_threads": "2"}
    now = {"OMP_NUM_THREADS": "2", "TF_NUM_INTRAOP_THREADS": "8"}
    seen = Seen()
    assert changes(recorded, seen, None, tmp_path, now) == [
        "TF_NUM_INTRAOP_THREADS was 2 and is 8; see resources.threads"
    ]
    assert changes({"packages": packages()}, seen, None, tmp_path, now) == []
