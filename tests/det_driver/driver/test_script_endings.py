"""How scripts end, and as what.

Each in a real process, of which the driver knows what it said and its exit status.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.process

TRAIN = """
import errno, os, sys
from det_core import InvalidHP, StorageError, core
from det_core.errors import StorageUnreachable

info = core.get_cluster_info()
fate = info.trial.hparams["fate"]

def train(context):
    context.train.report_validation_metrics(1, {"loss": 1.0})
    if fate == "raises":
        {}["x"]
    if fate == "argument":
        context.train.report_validation_metrics(1.5, {"loss": 1.0})
    if fate == "memory":
        raise MemoryError("no room for 3 TiB")
    if fate == "invalid":
        raise InvalidHP("too wide")
    if fate == "exits":
        sys.exit(5)
    if fate == "vanishes":
        os._exit(0)
    if fate == "caught":
        raise OSError(errno.EIO, "a disk")
    if fate == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if fate == "mount":
        raise StorageUnreachable("no route to the storage")

if fate == "outside":
    context = core.init()
    raise RuntimeError("nobody leaves the context")
try:
    with core.init() as context:
        train(context)
except OSError:
    if fate != "caught":
        raise
if fate == "late":
    sys.exit(6)
"""
LINE = TRAIN[: TRAIN.index("1.5")].count("\n") + 1
FATES = {
    "good": ("completed", None),
    "raises": ("error", "KeyError: 'x'"),
    "argument": (
        "mistake",
        f"train.py:{LINE}: report_validation_metrics(steps_completed=1.5): give a whole number",
    ),
    "memory": ("out_of_memory", "MemoryError: no room for 3 TiB"),
    "invalid": ("invalid_hp", "too wide"),
    "exits": ("the process exited with status 5", "the process exited with status 5"),
    "late": ("the process exited with status 6", "the process exited with status 6"),
    "vanishes": ("its process ended with status 0 at batch 1, before", "(os._exit(), or killed"),
    "caught": ("completed", None),
    "outside": ("error", "RuntimeError: nobody leaves the context"),
}
CONFIG = {
    "entrypoint": "python3 train.py",
    "max_restarts": 0,
    "resources": {"slots_per_trial": 0},
    "searcher": {
        "name": "grid",
        "metric": "loss",
        "max_length": {"batches": 10},
        "max_concurrent_trials": 4,
    },
}


def search(det: Any, fates: list[str], status: int = 0, **settings: Any) -> Any:
    det.cwd.joinpath("train.py").write_text(TRAIN)
    space = {"hyperparameters": {"fate": {"type": "categorical", "vals": fates}}}
    det.cwd.joinpath("c.yaml").write_text(json.dumps({**CONFIG, **space, **settings}))
    return det("run", "c.yaml", "--quiet", status=status, env={"DET_SLOTS_TOTAL": "4"})


def attempts(det: Any) -> dict[str, list[tuple[str, str | None]]]:
    trials = det.json("show", "1", "--runs")["trials"]
    return {
        t["hparams"]["fate"]: [(run["outcome"], run["reason"]) for run in t["attempts"]]
        for t in trials
    }


def test_every_script_ending_is_classified_as_for_a_trial_class(det: Any) -> None:
    search(det, list(FATES))
    found = attempts(det)
    for fate, (outcome, reason) in FATES.items():
        ((was, why),) = found[fate]
        assert was.startswith(outcome), fate
        assert reason in (why or "") if reason else why is None, fate


@pytest.mark.slow
@pytest.mark.parametrize(
    "entrypoint", ["python3 train.py 2>&1 | tee log", "python3 train.py; echo done"]
)
def test_shell_that_ends_with_status_0_hides_no_failure(det: Any, entrypoint: str) -> None:
    fates = {fate: FATES[fate] for fate in ("good", "raises", "argument", "exits", "caught")}
    fates["outside"] = FATES["outside"]
    search(det, list(fates), entrypoint=entrypoint)
    found = attempts(det)
    for fate, (outcome, reason) in fates.items():
        ((was, why),) = found[fate]
        assert was.startswith(outcome), fate
        assert reason in (why or "") if reason else why is None, fate


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


@pytest.mark.sample
@pytest.mark.parametrize(
    ("fate", "reason"), [("full", "No space left on device"), ("mount", "no route")]
)
def test_storage_failure_ends_a_script_resumably_in_one_line(
    det: Any, fate: str, reason: str
) -> None:
    """It uses up no restart."""
    done = search(det, [fate], 2, max_restarts=2)
    assert done.stderr.splitlines()[-1].startswith("det: trial 1: ")
    assert reason in done.stderr.splitlines()[-1]
    assert "go on with: det resume 1" in done.stdout
    assert len(attempts(det)[fate]) == 1
    det("resume", "1", "--quiet", status=2)
