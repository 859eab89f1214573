"""Submitting the running script as an experiment, and following it to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from det_core.code import copy_code
from det_core.config import parse
from det_core.extensions import extensions_of
from det_core.plugins import Plugins

from ..client import Client
from ._command import Command


def submit(
    config: Mapping[str, Any],
    context_dir: str | Path,
    command: str | Sequence[str] | None,
    *,
    home: Path,
    entrypoint: str | None,
    start: str = "",
) -> NoReturn:
    """Make an experiment of the script, follow it, and end this process with the status of `det run`.

    `entrypoint` is what the workers load; by default they run the script itself, with `start` before it. What `config` says of
    the entrypoint is not used.
    """
    script = Command.of(context_dir, command)
    plugins = Plugins.installed()
    data = {"name": Path(script.path).stem, **config, "entrypoint": entrypoint or start + script.shell()}
    notices = parse(data, extensions=extensions_of(plugins)).notices
    with tempfile.TemporaryDirectory(prefix="det-code-") as scratch:
        code = Path(scratch) / "code"
        copy_code(script.context_dir, code)
        script.write(code)
        experiment = Client(home).create_experiment(data, code, start=False)
    for notice in notices:
        sys.stderr.write(f"det: {notice}\n")
    sys.stdout.write(
        f"experiment {experiment.id} ({experiment.name}) is submitted; its workers run {script.path} again, and nothing that "
        "follows runs here\n"
    )
    sys.stdout.flush()
    raise SystemExit(_follow(experiment.id, home))


def _follow(experiment: int, home: Path) -> int:
    """Drive the experiment in a process of its own, as `det resume` does; Ctrl-C is for that one."""
    argv = [sys.executable, "-P", "-m", "det_driver.cli", "resume", str(experiment)]
    interactive = hasattr(sys, "ps1") or "ipykernel" in sys.modules
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if interactive else {}
    with _interrupts_ignored(), subprocess.Popen(argv, env=_environ(home), text=True, **output) as process:  # type: ignore[call-overload]
        for line in process.stdout or ():
            sys.stdout.write(line)
        return int(process.wait())


def _environ(home: Path) -> dict[str, str]:
    return {**os.environ, "DET_HOME": str(home)}


class _interrupts_ignored:
    """Leaves Ctrl-C, which a terminal sends to both, to the process that is followed."""

    def __enter__(self) -> None:
        self._main = threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGINT, lambda *_: None) if self._main else None

    def __exit__(self, *ignored: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)
