"""uv as the maker of environments.

Builds that are killed, that are many at once, that are asked for again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from det_core import Plugins
from det_core.errors import ConfigError, DetError
from det_core.hooks.hookspecs import hookimpl
from det_core.hooks.records import EnvironmentRecord
from det_env import UvMaker
from det_node.environments import (
    READY,
    EnvironmentMaker,
    Wanted,
    collect,
    digest_of,
    in_use,
    interpreter,
    make,
    maker,
    place_of,
    remove,
)

pytestmark = pytest.mark.process


def wanted(root: Path, directory: Path, *requirements: str, python: str = "") -> Wanted:
    return Wanted(
        python=python,
        requirements=requirements,
        directory=directory,
        brings=("det-training-core",),
        root=root,
    )


def solve(root: Path, directory: Path, *requirements: str, python: str = "") -> Path:
    into = directory / f"solved-{time.monotonic_ns()}"
    into.mkdir()
    UvMaker().solve(wanted(root, directory, *requirements, python=python), into)
    return into


def test_what_is_solved_is_the_same_for_the_same_question(root: Path, tmp_path: Path) -> None:
    one = solve(root, tmp_path, "six==1.16.0")
    began = time.monotonic()
    other = solve(root, tmp_path, "six==1.16.0")
    assert (
        time.monotonic() - began < 5.0
    )  # 0.05 s where nothing else is done; benchmarks/environments.py has it
    assert digest_of(one) == digest_of(other)
    lock = (one / "requirements.lock").read_text()
    assert "six==1.16.0 --hash=sha256:" in lock
    assert "./det_training_core-0.1.0-py3-none-any.whl --hash=sha256:" in lock


def test_processes_that_want_the_same_build_it_once(root: Path, tmp_path: Path) -> None:
    own = tmp_path / "envs"
    solved = solve(root, tmp_path, "six==1.16.0")
    digest = digest_of(solved)
    argv = [sys.executable, "-P", "-m", "det_node.environments", "uv", digest, str(own)]
    env = {**os.environ, "UV_CACHE_DIR": str(root / "uv")}

    def start(_: int) -> str:
        return subprocess.run(
            argv, cwd=solved, env=env, capture_output=True, text=True, check=True
        ).stdout

    with ThreadPoolExecutor(8) as threads:
        said = list(threads.map(start, range(8)))
    assert sum("making an environment" in each for each in said) == 1
    assert {each.splitlines()[-1] for each in said} == {interpreter(own, digest)}


def test_killed_build_is_never_used_as_complete(root: Path, tmp_path: Path) -> None:
    own = tmp_path / "envs"
    solved = solve(root, tmp_path, "six==1.16.0", "click==8.1.7")
    digest = digest_of(solved)
    place = place_of(own, digest)
    argv = [sys.executable, "-P", "-m", "det_node.environments", "uv", digest, str(own)]
    env = {**os.environ, "UV_CACHE_DIR": str(root / "uv")}
    for pause in (0.0, 0.1):
        build = subprocess.Popen(
            argv, cwd=solved, env=env, start_new_session=True, stdout=subprocess.DEVNULL
        )
        while not (place / "pyvenv.cfg").exists() and build.poll() is None:
            time.sleep(0.001)
        time.sleep(pause)
        os.killpg(build.pid, signal.SIGKILL)
        build.wait()
        if not (place / READY).exists():
            assert interpreter(own, digest) is None
    python = make("uv", solved, digest, own, Plugins.installed())
    done = subprocess.run(
        [python, "-c", "import six, click"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_requirements_may_be_files_locks_and_scripts(root: Path, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("six==1.16.0  # old\n")
    (tmp_path / "pylock.toml").write_text(
        'lock-version = "1.0"\n[[packages]]\nname = "six"\nversion = "1.16.0"\n'
    )
    (tmp_path / "train.py").write_text(
        '# /// script\n# requires-python = ">=3.12,<3.13"\n# dependencies = ["six==1.16.0"]\n#'
        " ///\nimport six\n"
    )
    for name in ("requirements.txt", "pylock.toml", "train.py"):
        into = tmp_path / f"solved-{name}"
        into.mkdir()
        asked = Wanted(
            python="",
            requirements=name,
            directory=tmp_path,
            brings=("det-training-core",),
            root=root,
        )
        UvMaker().solve(asked, into)
        assert "six==1.16.0" in (into / "requirements.lock").read_text()
        assert ('"3.12"' in (into / "python.json").read_text()) == (
            name == "train.py" or sys.version_info[1] == 12
        )


def test_a_uv_lock_is_read(root: Path, tmp_path: Path) -> None:
    from det_env.uv import uv

    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies ='
        ' ["six==1.16.0"]\n'
    )
    uv("lock", "--quiet", root=root, cwd=tmp_path)
    into = tmp_path / "solved"
    into.mkdir()
    asked = Wanted(
        python="",
        requirements="uv.lock",
        directory=tmp_path,
        brings=("det-training-core",),
        root=root,
    )
    UvMaker().solve(asked, into)
    assert "six==1.16.0" in (into / "requirements.lock").read_text()


def test_a_script_without_metadata_is_told_what_it_lacks(root: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import six\n")
    asked = Wanted(python="", requirements="train.py", directory=tmp_path, brings=(), root=root)
    with pytest.raises(
        ConfigError, match="has no block of metadata; begin it with the lines '# /// script'"
    ):
        UvMaker().solve(asked, tmp_path / "solved")


def test_an_environment_in_which_a_process_runs_is_not_removed(tmp_path: Path) -> None:
    place = tmp_path / "one"
    place.mkdir()
    (place / "sleep").symlink_to("/bin/sleep")
    process = subprocess.Popen([str(place / "sleep"), "60"])
    try:
        deadline = time.monotonic() + 10
        while not in_use(
            place, Path("/proc").glob("[0-9]*")
        ):  # a program has no command line yet as it begins
            assert time.monotonic() < deadline
        assert not remove(place)
    finally:
        process.kill()
        process.wait()
    assert remove(place)
    assert not place.exists()


def test_long_unused_environment_is_removed_without_a_prune(tmp_path: Path) -> None:
    for name, days in (("old", 61), ("new", 59)):
        (tmp_path / name).mkdir()
        (tmp_path / name / READY).touch()
        then = time.time() - days * 86_400
        os.utime(tmp_path / name / READY, (then, then))
    collect(tmp_path, 60)
    assert {path.name for path in tmp_path.glob("*/")} == {"new"}


def test_without_a_plugin_the_way_out_is_named() -> None:
    with pytest.raises(
        DetError,
        match=r"need det-env, which is not installed; run: python3 -m pip install .*det-env",
    ):
        maker(Plugins())
    with pytest.raises(DetError, match="not installed on "):
        maker(Plugins(), "uv")


def test_two_makers_are_one_too_many() -> None:
    class Maker(EnvironmentMaker):
        def solve(self, wanted: Wanted, into: Path) -> None: ...

        def install(self, solved: Path, into: Path) -> Path:
            return into

    class Other:
        @hookimpl
        def det_environments(self) -> list[EnvironmentRecord]:
            return [
                EnvironmentRecord(name="a", load=lambda: Maker),
                EnvironmentRecord(name="b", load=lambda: Maker),
            ]

    plugins = Plugins()
    plugins.register(Other(), "other")
    with pytest.raises(DetError, match="a and b both make environments; uninstall one of them"):
        maker(plugins)
    assert maker(plugins, "b")[0] == "b"


def test_environments_with_equal_files_share_compiled_code(tmp_path: Path) -> None:
    root = tmp_path / "envs"
    places = []
    for requirements in (("six==1.16.0",), ("six==1.16.0", "idna==3.10"), ("six==1.15.0",)):
        solved = solve(root, tmp_path, *requirements)
        python = make("uv", solved, digest_of(solved), root, Plugins.installed())
        said = subprocess.check_output(
            [python, "-c", "import six; print(six.u.__code__.co_filename)"], text=True
        )
        (site,) = Path(python).parents[1].glob("lib/python3*/site-packages")
        assert said.strip() == str(site / "six.py")
        places.append(next(site.glob("__pycache__/six.*.pyc")))
    first, second, other = (place.stat() for place in places)
    assert first.st_ino == second.st_ino
    assert other.st_ino != first.st_ino
