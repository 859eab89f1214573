"""The launchers as modules, `python3 -m det_node.launch.NAME`.

They run where training runs, without det-driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

MODULES = [
    "det_node.launch.socket",
    "det_node.launch.tensorflow",
    "det_node.launch.torch_distributed",
]

# Found as `sitecustomize` by every interpreter that is started below.
ALONE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("click", "rich", "det_driver"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def python(*argv: str, environ: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        env=dict(environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without click, rich and det-driver."""
    (tmp_path / "sitecustomize.py").write_text(ALONE)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = python("-c", "import click", environ=environ)
    assert "No module named 'click'" in done.stderr
    return environ


@pytest.mark.parametrize("module", MODULES)
def test_help_names_the_module_and_the_options(module: str) -> None:
    done = python("-m", module, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: python3 -m {module} [OPTIONS] [COMMAND]...")
    assert all(option in done.stdout for option in ("-np", "--hosts", "--start-timeout", "--trial"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--what"],
            (
                "unrecognized arguments: --what; see python3 -m det_node.launch.torch_distributed"
                " --help"
            ),
        ),
        (["-np", "0", "true"], "argument -np: '0' is not a whole number of 1 or more"),
        (["-np", "many", "true"], "argument -np: 'many' is not a whole number of 1 or more"),
        (["--port", "70000", "true"], "argument --port: '70000' is not a port, 1 to 65535"),
        (
            ["--start-timeout", "-1", "true"],
            "argument --start-timeout: '-1' is not a number of seconds above 0",
        ),
        (
            ["--hosts", "a", "true"],
            "--hosts has 'a'; write name:slots, such as h1:2,h2:2, with 1 slot or more each",
        ),
        (["-np"], "argument -np: expected one argument"),
        ([], "there is no command to launch; write it at the end, such as: python3 train.py"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(options: list[str], message: str) -> None:
    done = python("-m", "det_node.launch.torch_distributed", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("det: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_launches_where_click_and_rich_are_not_installed(
    ranks: int, alone: dict[str, str]
) -> None:
    options = ("-np", str(ranks), "sh", "-c", "echo $RANK of $WORLD_SIZE")
    done = python("-m", "det_node.launch.torch_distributed", *options, environ=alone)
    assert done.returncode == 0, done.stderr
    prefixed = "" if ranks == 1 else "[rank={0}] "
    assert sorted(done.stdout.splitlines()) == [
        f"{prefixed.format(n)}{n} of {ranks}" for n in range(ranks)
    ]


def test_usage_error_is_reported_without_click_and_rich(alone: dict[str, str]) -> None:
    done = python("-m", "det_node.launch.torch_distributed", "--port", "x", "true", environ=alone)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(
        "argument --port: 'x' is not a port, 1 to 65535; see python3 -m"
        " det_node.launch.torch_distributed --help\n"
    )
