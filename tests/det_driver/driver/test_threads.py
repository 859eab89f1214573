"""How many threads a trial computes with: as many on any engine."""

from __future__ import annotations

import os

import pytest

from det_core.support.origin import THREADS

CONFIG = """
name: threads
entrypoint: echo threads=$OMP_NUM_THREADS,$TF_NUM_INTRAOP_THREADS.
searcher: {name: random, metric: error, max_trials: 1, max_concurrent_trials: 1, max_length: 1}
"""


@pytest.fixture
def printed(det):
    def run(more: str = "", **env: str) -> str:
        (det.cwd / "const.yaml").write_text(CONFIG + more)
        det("run", "const.yaml", env=env, status=None)
        return det("logs", "1").stdout

    return run


def test_a_number_that_the_user_has_set_is_left_alone(printed) -> None:
    assert "threads=7,6." in printed(OMP_NUM_THREADS="7", TF_NUM_INTRAOP_THREADS="6")


@pytest.mark.process
def test_an_engine_has_the_threads_that_the_user_has_set_here(printed, tmp_path) -> None:
    """Its agents have an environment of their own, in which nothing is set."""
    ssh = (
        'engine: {name: ssh, hosts: [127.0.0.1], agent: "env -u OMP_NUM_THREADS -u'
        ' TF_NUM_INTRAOP_THREADS HOST={host}"}\n'
    )
    set_here = {"OMP_NUM_THREADS": "3", "TF_NUM_INTRAOP_THREADS": "5"}
    assert "threads=3,5." in printed(ssh, **set_here, HOME=str(tmp_path / "user"))


def test_cores_are_divided_among_concurrent_trials(printed, monkeypatch) -> None:
    for variable in THREADS:
        monkeypatch.delenv(variable, raising=False)
    cores = len(os.sched_getaffinity(0))
    assert f"threads={cores},{cores}." in printed()
