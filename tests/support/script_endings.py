"""Scripts under `det run` that end in many ways, one in each trial of a search."""

from __future__ import annotations

import json
from typing import Any

MEET = """
import errno, os, sys
from det_core import InvalidHP, core
from det_core.errors import StorageUnreachable

fate = core.get_cluster_info().trial.hparams["fate"]

def meet():
    if fate == "raises":
        {}["x"]
    if fate == "memory":
        raise MemoryError("no room for 3 TiB")
    if fate == "invalid":
        raise InvalidHP("too wide")
    if fate == "exits":
        sys.exit(5)
    if fate == "vanishes":
        os._exit(0)
    if fate == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if fate == "mount":
        raise StorageUnreachable("no route to the storage")
"""
"""The beginning of a script. It calls `meet` where its trial may end."""
ENDINGS = {
    "good": ("completed", None),
    "raises": ("error", "KeyError: 'x'"),
    "memory": ("out_of_memory", "MemoryError: no room for 3 TiB"),
    "invalid": ("invalid_hp", "too wide"),
    "exits": ("the process exited with status 5", "the process exited with status 5"),
    "vanishes": ("its process ended with status 0 at batch", "(os._exit(), or killed"),
}
"""The outcome that each trial has, and a part of the reason that is given."""
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
Endings = dict[str, tuple[str, str | None]]


def search(
    det: Any, script: str, fates: list[str], status: int = 0, metric: str = "loss", **settings: Any
) -> Any:
    """Run a search with a trial for each fate, and return the finished `det run`."""
    det.cwd.joinpath("train.py").write_text(script)
    space = {"hyperparameters": {"fate": {"type": "categorical", "vals": fates}}}
    searcher = {"searcher": {**CONFIG["searcher"], "metric": metric}}
    det.cwd.joinpath("c.yaml").write_text(json.dumps({**CONFIG, **searcher, **space, **settings}))
    return det("run", "c.yaml", "--quiet", status=status, env={"DET_SLOTS_TOTAL": "4"})


def attempts(det: Any) -> dict[str, list[tuple[str, str | None]]]:
    """Return the outcome and the reason of each run, by the fate of its trial."""
    trials = det.json("show", "1", "--runs")["trials"]
    return {
        t["hparams"]["fate"]: [(run["outcome"], run["reason"]) for run in t["attempts"]]
        for t in trials
    }


def check_endings(det: Any, script: str, endings: Endings, **settings: Any) -> None:
    """Run a search with a trial for each ending, and compare how its run was classified."""
    search(det, script, list(endings), **settings)
    found = attempts(det)
    for fate, (outcome, reason) in endings.items():
        ((was, why),) = found[fate]
        assert was.startswith(outcome), fate
        assert reason in (why or "") if reason else why is None, fate


def check_storage_failure(det: Any, script: str, fate: str, reason: str, **settings: Any) -> None:
    """See that a storage's failure ends the experiment in one line and costs no restart."""
    done = search(det, script, [fate], 2, max_restarts=2, **settings)
    assert done.stderr.splitlines()[-1].startswith("det: trial 1: ")
    assert reason in done.stderr.splitlines()[-1]
    assert "go on with: det resume 1" in done.stdout
    assert len(attempts(det)[fate]) == 1
