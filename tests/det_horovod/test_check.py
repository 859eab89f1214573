"""`det horovod check`: what it finds, and that it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
import time
from pathlib import Path

import pytest

from det_core import Plugins
from det_horovod import available

pytestmark = pytest.mark.process

FRAMEWORKS = [name for name in ("torch", "tensorflow") if available(name)]


@pytest.fixture
def pretended(environment):
    """A torch and a Horovod whose ranks do what `horovod.torch` is told to."""
    environment.add_framework("torch", "2.13.0")
    environment.hide("tensorflow")
    folder = environment.packages / "horovod" / "torch"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / f"mpi_lib_v2{sysconfig.get_config_var('EXT_SUFFIX')}").touch()
    environment.rank = folder / "__init__.py"
    return environment


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of processes that were started from an environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


@pytest.mark.skipif(
    not FRAMEWORKS, reason="Horovod is not built for this environment; run: det horovod install"
)
@pytest.mark.parametrize("host", ["this one", "one whose name leads nowhere"])
def test_two_real_ranks_add(host):
    elsewhere = ["unshare", "--uts", "sh", "-c", 'hostname nowhere.invalid && exec "$@"', "sh"]
    if (
        host != "this one"
        and subprocess.run([*elsewhere, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("a host of another name takes rights that this process has not")
    done = subprocess.run(
        [
            *(elsewhere if host != "this one" else []),
            sys.executable,
            "-m",
            "det_driver.cli",
            "horovod",
            "check",
        ],
        env={
            **os.environ,
            "HOROVOD_RANK": "5",
            "HOROVOD_GLOO_IFACE": "nowhere",
        },  # left over from another launcher
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    head, *rows = done.stdout.splitlines()
    assert head.split()[:2] == ["framework", "version"]
    for name in FRAMEWORKS:
        row = next(row for row in rows if row.startswith(name)).split()
        assert (row[2], "gloo" in row) == ("true", True), done.stderr
    assert done.returncode == (0 if all(" true " in row for row in rows) else 1)


def test_without_a_build_it_says_how_to_get_one(environment):
    environment.add_framework("torch", "2.13.0")
    environment.hide("tensorflow", "horovod")
    status, output, _ = environment.det("horovod", "check")
    assert status == 1
    assert output.splitlines()[1].split(maxsplit=3) == [
        "torch",
        "2.13.0",
        "false",
        "not built; run: det horovod install --with torch",
    ]


def test_without_a_framework_there_is_nothing_to_check(environment):
    environment.hide("torch", "tensorflow")
    status, _, error = environment.det("horovod", "check")
    assert status == 2
    assert error.startswith("det: there is no framework for Horovod to serve; install torch,")


def test_a_rank_that_fails_is_shown_with_its_error(pretended):
    (pretended.packages / "torch" / "__init__.py").write_text("")
    pretended.rank.write_text("raise ImportError('undefined symbol: _ZN5torch')")
    status, output, error = pretended.det("horovod", "check")
    assert status == 1
    assert "rank 0 ended with status 1" in output
    assert "ImportError: undefined symbol: _ZN5torch" in error


def test_ranks_that_hang_are_ended(pretended):
    (pretended.packages / "torch" / "__init__.py").write_text("")
    pretended.rank.write_text("import time; time.sleep(600)")
    start = time.monotonic()
    status, output, _ = pretended.det("horovod", "check", "--timeout", "2")
    assert (status, time.monotonic() - start < 60) == (1, True)
    assert "the ranks did not end within 2 s" in output
    assert processes_of(pretended.root) == []


def test_ranks_that_never_met_are_not_taken_for_a_success(pretended):
    (pretended.packages / "torch" / "__init__.py").write_text("def tensor(values): return values")
    pretended.rank.write_text(
        "class Sum: pass\n"
        "class Total(list):\n"
        "    numpy = lambda self: self\n"
        "    tolist = lambda self: list(self)\n"
        "init = shutdown = lambda: None\n"
        "rank, size = (lambda: 0), (lambda: 1)\n"
        "allreduce = lambda values, op: Total(values)\n"
        "gloo_built = mpi_built = nccl_built = lambda: False\n"
    )
    status, output, _ = pretended.det("horovod", "check")
    assert status == 1
    assert "a wrong sum" in output


def test_bare_it_shows_its_help(environment):
    environment.add_framework("torch", "2.13.0")
    process = subprocess.run(
        [environment.python, "-m", "det_driver.cli", "horovod"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0
    assert "install" in process.stdout
    assert "check" in process.stdout


@pytest.mark.parametrize("framework", sorted(Plugins.installed().frameworks()) or ["none"])
def test_a_framework_is_there_where_this_package_is_not(framework):
    """It is an extra of theirs; most of those who train on one process never install it."""
    script = """
        import sys
        sys.modules["det_horovod"] = None  # as if it were not installed
        from det_core import Plugins
        frameworks = Plugins.installed().frameworks()
        if sys.argv[1] in frameworks:
            frameworks[sys.argv[1]].load()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), framework],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
