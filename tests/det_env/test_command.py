"""`det env`: what is there, built ahead, and removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from det_driver.client import Client


def test_environment_is_kept_while_an_experiment_names_it(
    det: Any, experiment: Callable[..., Path], root: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """It is built ahead, listed and pruned by `det env`."""
    own = tmp_path / "envs"
    env = {"DET_ENVIRONMENTS": str(own), "UV_CACHE_DIR": str(root / "uv")}
    config = experiment('{requirements: ["six==1.16.0"]}')
    assert " is made: solved in " in det("env", "build", config, env=env).stdout
    assert " is there already: solved in " in det("env", "build", config, env=env).stdout
    listed = det("env", "list", env=env).stdout
    assert "used today, of no experiment" in listed
    assert " MB of its own, " in listed
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    Client(det.home).create_experiment(config, config.parent, start=False)
    assert "of experiments 1" in det("env", "list", env=env).stdout
    assert "removed" not in det("env", "prune", "--days", "0", env=env).stdout
    det("cancel", "1", env=env)
    assert "used today" in det("env", "list", env=env).stdout
    assert "removed" not in det("env", "prune", env=env).stdout
    assert "removed " in det("env", "prune", "--days", "0", env=env).stdout
    assert det("env", "list", env=env).stdout == ""


def test_a_configuration_that_asks_for_none_is_told_so(
    det: Any, experiment: Callable[..., Path]
) -> None:
    done = det("env", "build", experiment("{}"), status=2)
    assert "asks for no environment; give it environment.requirements" in done.stderr
