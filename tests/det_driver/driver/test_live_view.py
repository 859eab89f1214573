"""What a terminal shows while a search runs."""

from __future__ import annotations

import os
import pty
import subprocess


def seen(argv: list[str], **options) -> str:
    """Return what a command writes to a terminal of its own."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, **options)
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:
        pass  # Linux says so when the other side is closed
    os.close(ours)
    assert process.wait(timeout=30) == 0
    return b"".join(parts).decode(errors="replace")


def test_it_shows_leaders_rungs_counts_and_the_time_left(project):
    path = project.write(
        "searcher: {name: async_halving, metric: val_loss, num_rungs: 3, max_trials: 8, max_length: 64, divisor: 2,"
        " max_concurrent_trials: 4}\n"
    )
    env = project.det.env({**project.environ(1, {"PAUSE": "0.005"}), "COLUMNS": "200", "TERM": "xterm-256color"})
    out = seen(project.det.argv(["run", path]), cwd=project.det.cwd, env=env)
    frames = out.split("experiment 1 (search)")
    assert len(frames) > 5
    assert any("1 running, 3 queued" in frame for frame in frames)
    assert any(" left " in frame and "waiting" in frame for frame in frames)
    last = frames[-1]
    assert "100%" in last
    assert "8 ended" in last
    found = project.outcome()
    reached = {rung.length: rung.reached for rung in found.search.rungs}
    assert reached[16] == 8
    assert f"trials by length: 16: 8   32: {reached[32]}   64: {reached[64]}" in last
    best = min(found.trials, key=lambda trial: trial.best_metric)
    leader = next(line for line in last.splitlines() if line.startswith("1 "))
    assert leader.split()[1] == str(best.id)
    assert f"lr={best.hparams['lr']:.6g}" in leader
