"""Launchers under Determined's names, where training runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

MODULES = ("horovod", "tensorflow", "torch_distributed")


def module(
    name: str, *arguments: str, hiding: Path | None = None
) -> subprocess.CompletedProcess[str]:
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
        "torch_distributed",
        "-np",
        "2",
        "--",
        sys.executable,
        "-c",
        "import os; print('I am', os.environ['RANK'])",
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


def test_what_a_command_writes_gets_its_rank_before_each_line() -> None:
    code = (
        "import sys; print('one\\ntwo', end='', flush=True); sys.stderr.write('three\\n');"
        " sys.exit(7)"
    )
    done = module("wrap_rank", "3", "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (
        7,
        "[rank=3] one\n[rank=3] two\n",
        "[rank=3] three\n",
    )


def test_a_rank_may_be_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "5")
    assert module("wrap_rank", "PMI_RANK", "echo", "here").stdout == "[rank=5] here\n"


def test_a_wrapped_command_is_told_to_end() -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(4)); print('ready',"
        " flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-m", "determined.launch.wrap_rank", "0", sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[rank=0] ready\n"
        process.terminate()
        assert process.wait(timeout=30) == 4


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "give: RANK COMMAND, such as: 0 python3 train.py"),
        (("1",), 2, "the command []"),
        (("NO_RANK", "true"), 2, "the rank is 'NO_RANK'"),
        (
            ("1", "./no-such-program"),
            127,
            "cannot run './no-such-program': No such file or directory; name a program",
        ),
    ],
)
def test_a_wrapping_that_cannot_be_meant_is_refused(
    arguments: tuple[str, ...], status: int, message: str
) -> None:
    done = module("wrap_rank", *arguments)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
