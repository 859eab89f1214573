"""Environments where agents have files of their own.

The files of a lock are sent, and it is made there, once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SEARCH = "searcher={name: random, metric: loss, max_length: {batches: 1}, max_trials: 2}"


@pytest.mark.thorough
def test_environment_is_made_once_where_driver_files_are_missing(
    det: Any, experiment: Callable[..., Path], root: Path, tmp_path: Path
) -> None:
    """What ssh would do, `env` does here: another home, and an agent that is sent what it needs."""
    there = tmp_path / "there"
    config = experiment('{requirements: ["six==1.16.0"]}')
    agent = f"env HOME={there} UV_CACHE_DIR={root}/uv REACHED={{host}}"
    engine = f"engine={{name: ssh, hosts: [127.0.0.1], agent: '{agent}'}}"
    for number in (1, 2):
        det("run", config, "-c", engine, "-c", SEARCH, env={"DET_ENVIRONMENTS": str(root)})
        assert det("logs", str(number)).stdout.count("it is 1.16.0") == 2
    made = list((there / ".cache/det/agents/envs").glob("*/ready"))
    assert len(made) == 1
    assert str(there) in made[0].read_text()
    logs = [
        path.read_text()
        for path in sorted(det.home.glob("experiments/*/agents/environment-*/rank-0.log"))
    ]
    assert ["making an environment" in text for text in logs] == [True, False]


def test_an_interpreter_that_another_machine_has_not_is_named(
    det: Any, experiment: Callable[..., Path], tmp_path: Path
) -> None:
    config = experiment("{python: /no/such/python}")
    engine = (
        f"engine={{name: ssh, hosts: [127.0.0.1], agent: 'env HOME={tmp_path} REACHED={{host}}'}}"
    )
    done = det("run", config, "-c", engine, status=2)
    assert "environment.python is /no/such/python, and " in done.stderr
    assert "has no such interpreter; name one that it has" in done.stderr
