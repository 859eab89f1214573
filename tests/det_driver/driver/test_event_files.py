"""TensorBoard's files come to checkpoint storage when a run ends, however it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

SCRIPT = """
import os, signal
from det_core import core
with core.init(tensorboard_mode=core.TensorboardMode[os.environ.get("MODE", "AUTO")]) as context:
    place = context.train.get_tensorboard_path()
    place.mkdir(parents=True, exist_ok=True)
    (place / f"own-of-{os.environ['DET_TRIAL_RUN_ID']}").write_text("an image")
    context.train.report_validation_metrics(1, {"error": 0.5})
    if os.environ.get("END") == "preempted" and os.environ["DET_TRIAL_RUN_ID"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
        while not context.preempt.should_preempt():
            pass
    if os.environ.get("END") == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""
CONFIG = """
entrypoint: python3 train.py
max_restarts: 1
searcher: {{name: single, metric: error}}
checkpoint_storage: {storage}
"""


def run(det, storage: str, status: int = 0, **env: str) -> str:
    det.cwd.joinpath("train.py").write_text(SCRIPT)
    det.cwd.joinpath("c.yaml").write_text(CONFIG.format(storage=storage))
    return det("run", "c.yaml", status=status, env=env).stderr


def copied(root: Path) -> list[str]:
    return sorted(
        path.name.partition(".")[0]
        for path in root.glob("tensorboard-*/*")
        if path.name != "manifest.json"
    )


@pytest.mark.sample
@pytest.mark.parametrize(
    ("end", "status", "runs"), [("complete", 0, 1), ("preempted", 0, 2), ("killed", 1, 2)]
)
def test_event_files_are_copied_to_storage_when_the_run_ends(det, end, status, runs):
    """In one place for all of its runs; nothing in it counts as a checkpoint."""
    run(det, f"{{type: directory, container_path: {det.cwd}/kept}}", status, END=end)
    assert copied(det.cwd / "kept") == ["events"] * runs + ["own-of-1", "own-of-2"][:runs]
    assert det.json("checkpoint", "list", "1") == []


def test_event_files_at_home_or_in_manual_mode_are_not_copied(det):
    run(det, "{save_trial_best: 2}")
    run(det, f"{{type: directory, container_path: {det.cwd}/kept}}", MODE="MANUAL")
    assert copied(det.cwd / "kept") == copied(det.home / "checkpoints") == []


def test_run_ends_despite_unwritable_storage_for_event_files(det):
    det.cwd.joinpath("file").write_text("in the way")
    # Otherwise the storage is tried before the script trains.
    config = f"{{type: directory, container_path: {det.cwd}/file}}\ncheck_first: false"
    said = run(det, config)
    place = det.home / "experiments" / "1" / "tensorboard" / "trial-1"
    assert (
        "det: the TensorBoard files of trial 1 were not copied to checkpoint storage: cannot write"
        " checkpoints to" in said
    )
    assert said.rstrip().endswith(f"; they are in {place}")


def test_event_file_writer_is_imported_when_the_search_begins() -> None:
    """Not at the first report, whose trial would wait for it."""
    writer = "tensorboard.summary.writer.record_writer"
    pytest.importorskip(writer)
    begins = (
        "from det_driver.tensorboard import TensorBoard; TensorBoard().det_experiment_started(0)"
    )
    code = f"import sys; {begins}; sys.modules[{writer!r}]"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
