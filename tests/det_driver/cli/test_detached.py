"""A driver that is no child of who asked for it.

One of a job, and one whose home other machines have as well.
"""

from __future__ import annotations

import pytest
from tests.support.shared_disk import mounted, why_no_shared_disk

CONFIG = "entrypoint: python3 train.py\nsearcher: {name: single, metric: error}\n"
TRAIN = """
from det_core import core
with core.init() as context:
    context.train.report_validation_metrics(1, {"error": 0.5})
"""


def test_the_driver_of_a_job_takes_up_only_what_goes_on(det):
    det.cwd.joinpath("train.py").write_text(TRAIN)
    det.cwd.joinpath("c.yaml").write_text(CONFIG)
    det("run", "c.yaml", "--quiet")
    before = det.json("show", "1")
    assert det("resume", "1", "--in-job").stdout == ""
    assert det.json("show", "1") == before


@pytest.mark.skipif(bool(why_no_shared_disk()), reason=why_no_shared_disk())
def test_a_home_that_other_machines_may_have_is_named(det, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    det.home.mkdir(exist_ok=True)
    det.cwd.joinpath("train.py").write_text(TRAIN)
    det.cwd.joinpath("c.yaml").write_text(CONFIG)
    with mounted(disk, det.home):
        done = det("run", "c.yaml", "--quiet")
        assert f"det: {det.home} is on fuse" in done.stderr
        assert "COMPLETED" in det("show", "1").stdout
