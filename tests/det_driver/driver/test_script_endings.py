"""How scripts end, and as what.

Each in a real process, of which the driver knows what it said and its exit status.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.script_endings import (
    CONFIG,
    ENDINGS,
    MEET,
    check_endings,
    check_storage_failure,
)

pytestmark = pytest.mark.process

TRAIN = (
    MEET
    + """
if fate == "outside":
    context = core.init()
    raise RuntimeError("nobody leaves the context")
try:
    with core.init() as context:
        context.train.report_validation_metrics(1, {"loss": 1.0})
        meet()
        if fate == "argument":
            context.train.report_validation_metrics(1.5, {"loss": 1.0})
        if fate == "caught":
            raise OSError(errno.EIO, "a disk")
except OSError:
    if fate != "caught":
        raise
if fate == "late":
    sys.exit(6)
"""
)
LINE = TRAIN[: TRAIN.index("1.5")].count("\n") + 1
OWN_ENDINGS = {
    **ENDINGS,
    "argument": (
        "mistake",
        f"train.py:{LINE}: report_validation_metrics(steps_completed=1.5): give a whole number",
    ),
    "late": ("the process exited with status 6", "the process exited with status 6"),
    "caught": ("completed", None),
    "outside": ("error", "RuntimeError: nobody leaves the context"),
}


def test_every_script_ending_is_classified_as_for_a_trial_class(det: Any) -> None:
    check_endings(det, TRAIN, OWN_ENDINGS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "entrypoint", ["python3 train.py 2>&1 | tee log", "python3 train.py; echo done"]
)
def test_shell_that_ends_with_status_0_hides_no_failure(det: Any, entrypoint: str) -> None:
    fates = ("good", "raises", "argument", "exits", "caught", "outside")
    check_endings(det, TRAIN, {fate: OWN_ENDINGS[fate] for fate in fates}, entrypoint=entrypoint)


UNTIL = """
import pathlib
from det_core import core

first = not pathlib.Path("begun").exists()
pathlib.Path("begun").touch()
with core.init() as context:
    context.train.report_validation_metrics(1, {"loss": 1.0})
    if first:
        raise RuntimeError("the first attempt")
"""


def test_script_that_its_shell_starts_again_is_complete(det: Any) -> None:
    det.cwd.joinpath("train.py").write_text(UNTIL)
    settings = {
        "entrypoint": "until python3 train.py; do :; done",
        "searcher": {"name": "single", "metric": "loss"},
    }
    det.cwd.joinpath("c.yaml").write_text(json.dumps(CONFIG | settings))
    det("run", "c.yaml", "--quiet")
    [trial] = det.json("show", "1", "--runs")["trials"]
    assert [(run["outcome"], run["reason"]) for run in trial["attempts"]] == [("completed", None)]


def test_an_import_error_behind_a_shell_is_a_failure(det: Any) -> None:
    entrypoint = "python3 -c 'import not_there' | tee log"
    settings = {"entrypoint": entrypoint, "searcher": {"name": "single", "metric": "loss"}}
    det.cwd.joinpath("c.yaml").write_text(json.dumps(CONFIG | settings))
    done = det("run", "c.yaml", "--quiet", status=1)
    assert "ModuleNotFoundError: No module named 'not_there'" in done.stderr.splitlines()[-1]


def test_script_that_prints_a_caught_exception_is_complete(det: Any) -> None:
    """It never connects to det, and its last lines are those of the exception."""
    det.cwd.joinpath("train.py").write_text(
        "import logging\ntry:\n    {}['x']\nexcept KeyError:\n    logging.exception('skipped')\n"
    )
    settings = {"searcher": {"name": "single", "metric": "loss"}}
    det.cwd.joinpath("c.yaml").write_text(json.dumps(CONFIG | settings))
    det("run", "c.yaml", "--quiet")
    [trial] = det.json("show", "1", "--runs")["trials"]
    assert [(run["outcome"], run["reason"]) for run in trial["attempts"]] == [("completed", None)]


@pytest.mark.sample
@pytest.mark.parametrize(
    ("fate", "reason"), [("full", "No space left on device"), ("mount", "no route")]
)
def test_storage_failure_ends_a_script_resumably_in_one_line(
    det: Any, fate: str, reason: str
) -> None:
    check_storage_failure(det, TRAIN, fate, reason)
    det("resume", "1", "--quiet", status=2)
