"""Builds Horovod's wheel with pip in a separate folder, and reports the progress.

The build changes nothing in the environment.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from det_core.errors import DetError
from det_node.process import end_group

from . import _compiler
from ._recipe import TOOLS, VERSION, Recipe, compiler
from ._wheels import Cache

LAST_LINES = 20
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
_DECIDED = ("HOROVOD_WITH", "HOROVOD_GPU", "HOROVOD_CPU_OPERATIONS")
_PERCENT = re.compile(r"\[ *(\d{1,3})%\]")
_STEP = 10


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The commands that build a wheel in `folder`, and their additional environment variables."""

    folder: Path
    wrapper: str
    environ: Mapping[str, str]
    commands: tuple[list[str], ...]

    @classmethod
    def of(cls, recipe: Recipe, folder: Path, environ: Mapping[str, str]) -> Plan:
        """Return the plan of a build in a folder.

        The build tools are installed into the folder, because Horovod needs older versions than
        other packages.
        """
        tools, wheels = folder / "tools", folder / "wheels"
        before = [
            sys.executable,
            "-S",
            "-E",
            _compiler.__file__,
            *(["--without-xla"] if recipe.without_xla else []),
        ]
        return cls(
            folder=folder,
            wrapper=f'#!/bin/sh\nexec {shlex.join([*before, *compiler(environ)])} -- "$@"\n',
            environ={
                "CXX": str(folder / "cxx"),
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [str(tools), environ.get("PYTHONPATH", "")])
                ),
                "PATH": os.pathsep.join([str(tools / "bin"), environ.get("PATH", os.defpath)]),
                "HOROVOD_CMAKE": str(tools / "bin" / "cmake"),
                "MAKEFLAGS": environ.get("MAKEFLAGS") or f"-j{len(os.sched_getaffinity(0))}",
                **recipe.variables(),
            },
            commands=(
                [*_PIP, "install", "--target", str(tools), *TOOLS],
                [
                    *(
                        *_PIP,
                        "wheel",
                        "--verbose",
                        "--no-deps",
                        "--no-build-isolation",
                        "--no-cache-dir",
                    ),
                    *("--no-binary", "horovod", "--wheel-dir", str(wheels), f"horovod=={VERSION}"),
                ],
            ),
        )

    @property
    def wheel(self) -> Path:
        """The path of the wheel that the commands make."""
        python, system = (
            f"cp{sys.version_info.major}{sys.version_info.minor}",
            sysconfig.get_platform(),
        )
        return (
            self.folder
            / "wheels"
            / f"horovod-{VERSION}-{python}-{python}-{re.sub('[-.]', '_', system)}.whl"
        )

    def script(self) -> str:
        """Return the plan as lines of shell code. They do not change the shell that runs them."""
        cxx = shlex.quote(self.environ["CXX"])
        return "\n".join(
            [
                f"mkdir -p {shlex.quote(str(self.folder))}",
                f"printf %s {shlex.quote(self.wrapper)} > {cxx}",
                f"chmod +x {cxx}",
                "(",
                *(f"export {name}={shlex.quote(value)}" for name, value in self.environ.items()),
                " &&\n".join(shlex.join(command) for command in self.commands),
                ")",
            ]
        )


def build(
    recipe: Recipe,
    cache: Cache,
    environ: Mapping[str, str],
    lock: int,
    line: Callable[[str], object],
) -> Path:
    """Build a wheel while its lock is held, and return its path in the cache.

    `line` is called with each line of the output. Raises DetError with the last lines and the path
    of the log if the build fails.
    """
    with (
        cache.workspace(recipe.key) as folder,
        (cache.root / f"{recipe.key}.log").open("w", encoding="utf-8") as log,
    ):
        plan = Plan.of(recipe, folder, environ)
        cxx = Path(plan.environ["CXX"])
        cxx.write_text(plan.wrapper, encoding="utf-8")
        cxx.chmod(0o755)
        inherited = {
            name: value for name, value in environ.items() if not name.startswith(_DECIDED)
        }
        last: deque[str] = deque(maxlen=LAST_LINES)

        def note(text: str) -> None:
            log.write(text)
            last.append(text.rstrip())
            line(text)

        for command in plan.commands:
            note(f"$ {shlex.join(command)}\n")
            status = _run(command, {**inherited, **plan.environ}, folder, lock, note)
            if status:
                log.flush()
                ending = "\n".join(last)
                raise DetError(
                    f"{ending}\nbuilding Horovod failed (status {status}); its whole log:"
                    f" {log.name}"
                )
        return cache.keep(recipe.key, plan.wheel)


def _run(
    command: list[str],
    environ: Mapping[str, str],
    folder: Path,
    lock: int,
    note: Callable[[str], object],
) -> int:
    """Run a command in a new session, and end all processes of the session afterwards."""
    with subprocess.Popen(
        command,
        env=dict(environ),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # The build holds the lock even if this process is killed.
        pass_fds=(lock,),
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for text in process.stdout:
                note(text)
            return process.wait()
        finally:
            end_group(process.pid)


class Progress:
    """Writes the progress of a build to the standard error.

    It writes a line with the elapsed time for each tenth of what make does.
    """

    def __init__(self, title: str) -> None:
        self._start, self._reported = time.monotonic(), 0
        self._write(title)

    def line(self, text: str) -> None:
        """Read a line of the build's output."""
        found = _PERCENT.search(text)
        if found and int(found[1]) >= self._reported + _STEP:
            self._reported = int(found[1])
            self._write(f"  {self._reported:3d} %  after {self.passed}")

    @property
    def passed(self) -> str:
        """The time since the build began, as minutes and seconds."""
        minutes, seconds = divmod(round(time.monotonic() - self._start), 60)
        return f"{minutes}:{seconds:02d}"

    def _write(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
