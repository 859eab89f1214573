"""Scripts of the Core API that are struck at random.

`--kills=20` (`nox -s chaos`) is the campaign.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty_scripts import Campaign

pytestmark = pytest.mark.process

TRAIN = """
import json, sys, time
from det_core import core

with core.init() as context:
    weight = start = 0
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            weight, start = json.loads((path / "state.bin").read_text())
    for operation in context.searcher.operations():
        for batch in range(start + 1, operation.length + 1):
            time.sleep(0.03)
            weight += 0.1 * (1.0 - weight)
            if batch % 10 == 0:
                context.train.report_validation_metrics(batch, {"error": 1.0 - weight})
            preempted = context.preempt.should_preempt()
            if batch % 8 == 0 or batch == operation.length or preempted:
                with context.checkpoint.store_path({"steps_completed": batch}) as (path, uuid):
                    (path / "state.bin").write_text(json.dumps([weight, batch]))
            if preempted:
                sys.exit(0)
        start = operation.length
        operation.report_completed(1.0 - weight)
"""


def test_interrupted_core_api_script_equals_an_uninterrupted_one(
    det: Any, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    campaign = Campaign(det, tmp_path, pytestconfig.getoption("kills"))
    campaign.check(TRAIN, "error", max_length={"batches": campaign.length(100, 40)})


@pytest.mark.slow
def test_core_api_script_saves_when_agent_or_driver_is_lost(det: Any, tmp_path: Path) -> None:
    Campaign(det, tmp_path, 2).check_losses(TRAIN, "error", max_length={"batches": 200})
