"""How many threads a CPU trial of a search computes with."""

from __future__ import annotations

import os

import pytest

CONFIG = """
name: threads
entrypoint: echo threads=$OMP_NUM_THREADS
searcher: {name: random, metric: error, max_trials: 1, max_concurrent_trials: 1, max_length: 1}
"""


@pytest.fixture
def printed(det):
    def run(**env: str) -> str:
        (det.cwd / "const.yaml").write_text(CONFIG)
        det("run", "const.yaml", env=env, status=None)
        return det("logs", "1").stdout

    return run


def test_a_number_that_the_user_has_set_is_left_alone(printed) -> None:
    assert "threads=7" in printed(OMP_NUM_THREADS="7")


def test_the_cores_are_shared_among_the_trials_that_may_run_at_once(printed, monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert f"threads={len(os.sched_getaffinity(0))}" in printed()
