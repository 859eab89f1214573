"""What the sessions of `noxfile.py` share: installing, running tests, and the table at the end.

Each `recorded` session writes its `Result` to a file, because nox may run it in a process of its
own. `print_table` prints the results of one run of nox. Those of the full tier are kept by git's
hash of the tree, so that a session that has passed is not run again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".nox" / "results"
LAST_LINE = ROOT / ".nox" / "last-line.txt"
"""What `.ci/run` prints below nox's own summary."""
AGAIN = "--again"
PAUSES = (5, 20)
"""Seconds before the second and the third try to install."""
MOST_FLAKY = 3
"""A run with more flaky tests than this has failed."""
MOST_REPEATED = 10
"""If more tests than this fail, the commit is at fault and not the machine."""


@dataclass
class Result:
    """What a session ran."""

    session: str
    is_full: bool = False
    cases: int = 0
    all_cases: int = 0
    failed: list[str] = field(default_factory=list)
    flaky: list[str] = field(default_factory=list)
    started: float = 0.0
    minutes: float = 0.0
    state: str = "passed"

    def save(self, file: Path) -> None:
        """Write the result as JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> Result:
        """Read what `save` wrote."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


RUN = KEPT / "runs" / os.environ.setdefault("SESSIONS_RUN", f"{os.getpid()}-{time.time_ns()}")
"""The results of this run of nox. The processes of its sessions inherit the name.

It does not begin with `DET_`: programs of det that tests run show their variables.
"""
_results: dict[str, Result] = {}
"""The results of this process, by session."""


def chosen(session: nox.Session) -> list[str]:
    """Return the arguments for pytest that the user gave after `--`."""
    return [each for each in session.posargs if each != AGAIN]


def install(session: nox.Session, *arguments: str) -> None:
    """Install packages; try three times, because a registry may not answer."""
    for pause in PAUSES:
        try:
            session.install(*arguments)
            return
        except CommandFailed:
            session.log(f"Installing failed. Next try in {pause} seconds.")
            time.sleep(pause)
    session.install(*arguments)


def program(session: nox.Session, name: str) -> str:
    """Return the path of a program, looked up in the session's own `PATH` if it has one."""
    return shutil.which(name, path=session.env.get("PATH") or "") or name


def digest(*patterns: str) -> str:
    """Return a digest of files of the repository, and of the Python that runs nox."""
    found = hashlib.sha256(sys.version.encode())
    for file in sorted(file for pattern in patterns for file in ROOT.glob(pattern)):
        found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


def recorded(*, keep: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a session so that it has a row in the table.

    With `keep`, a session that has passed for this very tree is skipped, unless the user gives
    `-- --again` or arguments for pytest.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(session: nox.Session, *arguments: Any, **parameters: Any) -> None:
            name = _file_name(session.name)
            whole = not chosen(session)
            passed = _passed(name) if keep and whole else None
            if passed and AGAIN not in session.posargs and passed.exists():
                kept = Result.load(passed)
                kept.state = "passed before"
                kept.save(RUN / name)
                session.skip(f"It has passed for this tree; `-- {AGAIN}` runs it all the same.")
            result = _results[session.name] = Result(
                session.name, is_full=keep, started=time.time()
            )
            try:
                function(session, *arguments, **parameters)
            except BaseException:
                result.state = "FAILED"
                raise
            finally:
                result.minutes = (time.time() - result.started) / 60
                result.save(RUN / name)
            # The tree may have changed while the tests ran.
            if passed and passed == _passed(name):
                result.save(passed)

        return run

    return decorate


def run_tests(
    session: nox.Session,
    *targets: str,
    marks: str = "",
    options: Sequence[str] = (),
) -> None:
    """Run pytest, count its cases, and run each failed test once more, alone.

    A test that passes then is flaky: it is named at the end and does not fail the session.
    """
    result = _results[session.name]
    # A folder of the session's own for temporary files would be in the repository, where a test's
    # pytest would find its settings.
    file = RUN / "cases" / _file_name(session.name)
    file.unlink(missing_ok=True)
    common = (*options, f"--results={file}")
    pytest = program(session, "pytest")
    command = (pytest, *targets, "-m", marks, *common)
    if session.run(*command, external=True, success_codes=[0, 1, 5]) is None:
        # With `--install-only`, nox runs nothing.
        return
    found = _read(session, file)
    result.cases += found["chosen"]
    result.all_cases += found["all"]
    failed = found["failed"]
    if not failed and found["status"] in (0, 5):
        return
    result.failed += failed
    if not failed or len(failed) > MOST_REPEATED:
        session.error(f"{len(failed)} tests failed: {' '.join(failed)}")
    session.log(f"Running {len(failed)} failed tests once more, alone.")
    file.unlink()
    session.run(pytest, *failed, "-m", "", *common, external=True, success_codes=[0, 1])
    second = _read(session, file)
    if second["chosen"] != len(failed):
        session.error("Not every failed test was run once more.")
    result.flaky += [each for each in failed if each not in second["failed"]]
    result.failed = [each for each in result.failed if each not in result.flaky]
    if second["status"]:
        session.error(f"{len(second['failed'])} tests failed twice: {' '.join(second['failed'])}")


def print_table(session: nox.Session) -> None:
    """Print a row for each session, and the number of cases. Fail if too many tests are flaky."""
    results = sorted(map(Result.load, RUN.glob("*.json")), key=lambda each: each.started)
    rows = [("session", "state", "cases", "failed", "minutes")]
    rows += [
        (
            each.session,
            each.state,
            f"{each.cases:,}" if each.cases else "",
            str(len(each.failed)) if each.cases else "",
            f"{each.minutes:.1f}",
        )
        for each in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))
    for each in results:
        for name in each.failed:
            print(f"failed: {name}")
    flaky = [name for each in results for name in each.flaky]
    cases, every = (sum(getattr(e, key) for e in results) for key in ("cases", "all_cases"))
    last = f"{cases:,} cases"
    if not all(each.is_full for each in results):
        last = f"{cases:,} of {every:,} cases; the rest: nox -t full"
    last += f"; flaky: {' '.join(flaky)}" if flaky else ""
    print(last, flush=True)
    LAST_LINE.parent.mkdir(exist_ok=True)
    LAST_LINE.write_text(last + "\n", encoding="utf-8")
    shutil.rmtree(RUN, ignore_errors=True)
    if len(flaky) > MOST_FLAKY:
        session.error(f"more than {MOST_FLAKY} tests are flaky")


def _read(session: nox.Session, file: Path) -> dict[str, Any]:
    if not file.exists():
        session.error("pytest wrote no results")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _file_name(session: str) -> str:
    return re.sub(r"\W+", "-", session).strip("-") + ".json"


def _passed(name: str) -> Path | None:
    """Return the file that says that a session has passed for this tree."""
    tree = tree_name()
    return KEPT / "passed" / tree / name if tree else None


def tree_name() -> str:
    """Return git's hash of the files of the working tree, or "" where git is not in use.

    Changes that are not committed count, ignored files do not.
    """
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        own = ROOT / ".git" / "index"
        if own.exists():
            # With the checked-out state of all files at hand, only changed ones are read.
            shutil.copy(own, index)
        environ = {**os.environ, "GIT_INDEX_FILE": str(index)}
        try:
            for command in (["git", "add", "--all"], ["git", "write-tree"]):
                # git is the one that the user calls by this name.
                done = subprocess.run(  # nosec B607
                    command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True
                )
        except (OSError, subprocess.CalledProcessError):
            return ""
    return done.stdout.strip()
