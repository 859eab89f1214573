"""Processes that a script forks, which share its connection to det."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.process

FORKS = """
import os, sys
from det_core import DetError, core

with core.init() as context:
    context.train.report_validation_metrics(1, {"loss": 1.0})
    child = os.fork()
    if child == 0:
        try:
            context.train.report_training_metrics(7, {"loss": 7.0})
        except DetError as error:
            print("refused:", error, flush=True)
        LEAVES
    print("child", os.waitpid(child, 0)[1], flush=True)
    context.train.report_validation_metrics(2, {"loss": 0.5})
"""


@pytest.mark.parametrize("leaves", ["sys.exit(0)", 'raise ValueError("in the child")'])
def test_a_forked_child_leaves_the_connection_to_its_parent(det: Any, leaves: str) -> None:
    """It leaves the context without waiting for a thread that it does not have."""
    det.cwd.joinpath("train.py").write_text(FORKS.replace("LEAVES", leaves))
    config = {
        "entrypoint": "python3 train.py",
        "max_restarts": 0,
        "searcher": {"name": "single", "metric": "loss"},
    }
    det.cwd.joinpath("c.yaml").write_text(json.dumps(config))
    det("run", "c.yaml", "--quiet")
    logs = det("logs", "1").stdout
    assert "refused: det cannot send Reported from a forked process" in logs
    assert f"child {0 if 'exit' in leaves else 256}" in logs
    reports = [(row["group"], row["batches"]) for row in det.metrics(1)]
    assert reports == [("validation", 1), ("validation", 2)]
