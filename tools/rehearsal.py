"""Rehearses a release on this machine: `nox -s rehearsal`, or `-- det-torch` for some packages.

In a clone of the last commit, it does what `.github/workflows/release.yml` does: it moves the
version, builds all packages, and runs `twine check --strict`. An index on loopback publishes the
result. Then one command installs each package in an environment of its own, as a user would, and a
script trains there. An older version is upgraded. At last det is installed from the repository by
pip, without an index. Wherever det prints a command that installs a package, that command is run.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tools.release import UNPUBLISHED, distributions, versions

ROOT = Path(__file__).parents[1]
ADDRESS = "https://example.org/det"
OF_AN_UPGRADE = ("det-training-core", "det-node", "det-driver", "det-slurm", "det-web")
SCRIPT = """
import det_core.core

with det_core.core.init() as context:
    context.train.report_validation_metrics(1, {"error": 0.5})
"""
CONFIG = """
name: rehearsed
entrypoint: python3 train.py
searcher: {name: single, metric: error}
"""
_SECONDS = 1800


class Environment:
    """A virtual environment of somebody who has nothing but pip, with a home of its own."""

    def __init__(self, place: Path, env: Mapping[str, str]) -> None:
        subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
        kept = {
            k: v
            for k, v in env.items()
            if not k.startswith(("DET_", "NOX", "PYTHON", "VIRTUAL_ENV", "UV_"))
        }
        path = f"{place / 'venv/bin'}{os.pathsep}{env['PATH']}"
        self._env = {**kept, "PATH": path, "DET_HOME": str(place / "home")}
        self._cwd = place / "project"
        self._cwd.mkdir()
        self._cwd.joinpath("train.py").write_text(SCRIPT)
        self._cwd.joinpath("const.yaml").write_text(CONFIG)

    def does(self, command: str, status: int = 0, unless: str = "") -> str:
        """Run a line of a shell, and return what it printed; it has to end with this status."""
        # The user's own shell, as in the guides.
        done = subprocess.run(  # nosec B607
            ["bash", "-c", command],
            check=False,
            cwd=self._cwd,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
        )
        if done.returncode != status or (unless and unless in done.stdout):
            raise SystemExit(
                f"{command}\n{done.stdout}\nended with status {done.returncode}, not {status}"
            )
        return done.stdout

    def installs(self, *wanted: str) -> None:
        """Install by one command, and see that pip is content."""
        quoted = " ".join(f"'{each}'" for each in wanted)
        self.does(f"python3 -m pip install --quiet {quoted} && python3 -m pip check")

    def trains(self) -> None:
        """Train a script, which needs no framework."""
        said = self.does("det run const.yaml")
        assert "is completed: best error 0.5" in said, said

    def has(self, version: str) -> dict[str, str]:
        """Return the versions of det's packages there; all of them have to be this one."""
        lines = self.does("python3 -m pip list --format=freeze").splitlines()
        found = dict(line.split("==") for line in lines if line.startswith("det-") and "==" in line)
        assert found, lines
        assert set(found.values()) == {version}, found
        return found

    def follows(self, command: str) -> str:
        """Run the command that det's answer to a command, which lacks something, says to run."""
        said = self.does(command, status=2)
        way_out = said[said.index("python3 -m pip install") :].strip()
        self.does(way_out)
        return way_out


def build(clone: Path, version: str, names: Sequence[str]) -> Path:
    """Build distributions in a version; return the folder with them, which `twine` has checked."""
    release = [sys.executable, "-m", "tools.release"]
    subprocess.run([*release, "version", version], cwd=clone, check=True, stdout=subprocess.DEVNULL)
    changelog = clone / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    changelog.write_text(
        text.replace(f"## Unreleased: {version}", f"## {version}, 2030-01-31"), encoding="utf-8"
    )
    # As at the first release, the pages say that the packages can be installed by name.
    for name in UNPUBLISHED:
        page = clone / name
        page.write_text(
            page.read_text(encoding="utf-8").replace("on PyPI yet", "missing from PyPI"),
            encoding="utf-8",
        )
    subprocess.run([*release, "check", f"v{version}"], cwd=clone, check=True)
    changelog.write_text(text, encoding="utf-8")
    subprocess.run([*release, "links", ADDRESS], cwd=clone, check=True)
    for name in set(distributions(clone)) - set(names):
        shutil.rmtree(distributions(clone)[name])
    subprocess.run([*release, "build"], cwd=clone, check=True, stdout=subprocess.DEVNULL)
    files = sorted(map(str, (clone / "dist").iterdir()))
    assert len(files) == 2 * len(names), files
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    return clone / "dist"


@contextmanager
def index(folders: Sequence[Path]) -> Iterator[str]:
    """Serve distributions on loopback; give the address for pip."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "pypiserver",
        "run",
        "-i",
        "127.0.0.1",
        "-p",
        str(port),
        "--disable-fallback",
    ]
    with subprocess.Popen([*command, *map(str, folders)], stderr=subprocess.DEVNULL) as served:
        address = f"http://127.0.0.1:{port}/simple/"
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    # The index that this program has started on loopback.
                    urlopen(address, timeout=5).close()  # nosec B310
                    break
                except URLError:
                    if served.poll() is not None or time.monotonic() > deadline:
                        raise SystemExit("the index did not start") from None
                    time.sleep(0.1)
            yield address
        finally:
            served.terminate()


def install_each(names: Sequence[str], place: Path, env: Mapping[str, str], version: str) -> None:
    """Install each package by one command, and train a script with what came."""
    for name in names:
        begun = time.monotonic()
        about = tomllib.loads(
            (distributions(ROOT)[name] / "pyproject.toml").read_text(encoding="utf-8")
        )
        extra = "[cpu]" if "cpu" in about["project"].get("optional-dependencies", {}) else ""
        there = Environment(_made(place / name), env)
        there.installs(f"{name}{extra}")
        found = there.has(version)
        assert name in found
        # det-horovod and det-node have no need of the command.
        if "det-driver" in found:
            assert version in there.does("det version")
            there.does("det plugins", unless="skipped")
            there.trains()
        print(
            f"{name}{extra}: installed from the index, {time.monotonic() - begun:.0f} s", flush=True
        )
        shutil.rmtree(place / name)


def upgrade(place: Path, env: Mapping[str, str], older: str, newer: str) -> None:
    """Upgrade a package of an older version, with what it needs, then what det says is too old."""
    there = Environment(_made(place / "upgraded"), env)
    there.installs(f"det-slurm=={older}", f"det-web=={older}")
    there.has(older)
    there.trains()
    there.does("python3 -m pip install --quiet --upgrade det-slurm")
    said = there.does("det plugins").splitlines()[0]
    way_out = said[said.index("python3 -m pip install") :].partition(";")[0]
    there.does(f"{way_out} && python3 -m pip check")
    there.has(newer)
    assert "skipped" not in there.does("det plugins")
    assert "rehearsed" in there.does("det show 1")
    there.trains()
    print(f"det-slurm and det-web: upgraded from {older}; det said: {way_out}", flush=True)


def from_repository(clone: Path, place: Path, env: Mapping[str, str]) -> None:
    """Install what pip clones by itself, and what is in a clone; no index has det then."""
    [version] = set(versions(clone).values())
    origins = {
        "a repository": f"git+file://{clone}#subdirectory=packages/",
        "a clone": f"{clone}/packages/",
    }
    for what, origin in origins.items():
        there = Environment(_made(place / what), env)
        there.installs(f"{origin}det-core", f"{origin}det-node", f"{origin}det-driver")
        there.trains()
        way_out = there.follows("det ui")
        there.has(version)
        assert "Open the page" in there.does("det ui --help")
        print(f"det-driver: installed from {what}; det said: {way_out}", flush=True)


def needed(names: Sequence[str]) -> set[str]:
    """Return the distributions of these names, and those of det's that they require."""
    found = set(names)
    for name in names:
        about = tomllib.loads(
            (distributions(ROOT)[name] / "pyproject.toml").read_text(encoding="utf-8")
        )["project"]
        texts = (re.split(r"[^\w-]", text)[0] for text in about["dependencies"])
        found |= needed([text for text in texts if text in distributions(ROOT)])
    return found


def _made(place: Path) -> Path:
    place.mkdir()
    return place


def main(names: Sequence[str]) -> None:
    """Rehearse a release of the last commit; install the packages of these names, or all."""
    [older] = set(versions(ROOT).values())
    major, minor, _ = older.split(".")
    newer = f"{major}.{int(minor) + 1}.0"
    chosen = list(names) or list(distributions(ROOT))
    env = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="det-rehearsal-") as scratch:
        place = Path(scratch)
        for clone in ("older", "newer", "repository"):
            # The user's own Git.
            subprocess.run(["git", "clone", "--quiet", ROOT, place / clone], check=True)  # nosec B607
        folders = [
            build(place / "older", older, OF_AN_UPGRADE),
            build(place / "newer", newer, sorted({*OF_AN_UPGRADE, *needed(chosen)})),
        ]
        with index(folders) as address:
            extra = " ".join(
                filter(None, [env.get("PIP_EXTRA_INDEX_URL", _extra_index_urls()), address])
            )
            install_each(chosen, place, {**env, "PIP_EXTRA_INDEX_URL": extra}, newer)
            upgrade(place, {**env, "PIP_EXTRA_INDEX_URL": extra}, older, newer)
        from_repository(place / "repository", place, env)


def _extra_index_urls() -> str:
    """Return the further indexes that pip is configured for, which a variable would replace."""
    asked = [sys.executable, "-m", "pip", "config", "get", "global.extra-index-url"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split())


if __name__ == "__main__":
    main(sys.argv[1:])
