"""Launchers under Determined's names, where training runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = ("horovod", "tensorflow", "torch_distributed")


def module(name: str, *arguments: str, hiding: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(hiding or ""), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-m", f"determined.launch.{name}", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_script_is_launched_on_ranks() -> None:
    done = module(
        "torch_distributed", "-np", "2", "--", sys.executable, "-c", "import os; print('I am', os.environ['RANK'])"
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[rank=0] I am 0", "[rank=1] I am 1"]


@pytest.mark.parametrize("name", MODULES)
def test_they_need_no_click_where_training_runs(name: str, tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise ModuleNotFoundError('gone', name='click')\n")
    done = module(name, "-np", "1", "--", sys.executable, "-c", "print('trained')", hiding=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr


@pytest.mark.parametrize("name", MODULES)
def test_a_mistake_is_one_line_and_names_the_module(name: str) -> None:
    done = module(name, "-np", "0")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert f"python3 -m determined.launch.{name} --help" in done.stderr
