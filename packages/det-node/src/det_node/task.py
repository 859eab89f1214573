"""Runs a command on the slots of a run: `python -m det_node.task KIND [OPTIONS] -- COMMAND...`.

It is the entrypoint of an experiment without a trial. It ends the command at its time limit, or
when the command is idle, and writes the command's exit status next to the run's log. A shell gets a
terminal.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from det_node.limits import end_in_time
from det_node.process import cpu_seconds

MODULE = "det_node.task"
SHELL = "shell"
"""The kind of a task that runs in a terminal."""
NOTEBOOK = "notebook"
"""The kind of a task that runs JupyterLab. Its command is where that listens, and its directory."""
STATUS = "exit-status"
"""The file in the log directory of a run with the exit status of its command."""
_TERMINATED = 128 + signal.SIGTERM
_BUSY = 0.01


def task_words(
    kind: str,
    command: Sequence[str],
    *,
    directory: Path | None,
    max_seconds: float | None = None,
    idle_seconds: float | None = None,
) -> list[str]:
    """Return the entrypoint of a task.

    - `kind`: what users call it, such as `command`, or `SHELL`.
    - `command`: its words. A shell without words is that of the account.
    - `directory`: where the command runs. None is the directory with the code of the experiment.
    - `max_seconds`: how long it may run.
    - `idle_seconds`: how long it may write nothing and use less than 1 % of a CPU core. In a shell,
      how long nothing may be typed or written. In a notebook, how long no cell may run.
    """
    limits = {"--max-seconds": max_seconds, "--idle-seconds": idle_seconds}
    given = [word for option, n in limits.items() if n is not None for word in (option, f"{n:g}")]
    start = ["python3", "-P", "-m", MODULE, kind, "--directory", str(directory or ".")]
    return [*start, *given, "--", *command]


def find_kind(entrypoint: str | Sequence[str] | None) -> str:
    """Return the kind of task that an entrypoint runs, or "" for a trial or a script."""
    text = entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint or ())
    words = text.split(maxsplit=5)
    return words[4] if words[1:4] == ["-P", "-m", MODULE] and len(words) > 4 else ""


def main(argv: Sequence[str]) -> int:
    """Run the task and return the exit status of its command, 128 + n for a signal n."""
    import argparse

    parser = argparse.ArgumentParser(prog=MODULE)
    parser.add_argument("kind")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--max-seconds", type=float)
    parser.add_argument("--idle-seconds", type=float)
    end = argv.index("--") if "--" in argv else len(argv)
    options, command = parser.parse_args(argv[:end]), argv[end + 1 :]
    if options.kind == SHELL:
        command = command or [find_shell()]
        return _serve(command, options.directory, options.max_seconds, options.idle_seconds)
    if not command:
        parser.error("there is no command after --")
    # The signal reaches the whole group, so the command decides what happens.
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    run = _open if options.kind == NOTEBOOK else _run
    status = run(command, options.directory, options.max_seconds, options.idle_seconds)
    if scratch := os.environ.get("DET_SCRATCH_DIR"):
        # Without the file only the state of the experiment says how the command ended.
        with suppress(OSError):
            (Path(scratch).parent / STATUS).write_text(f"{status}\n")
    # A driver takes a run that SIGTERM ended for preempted, and would start it again.
    return 1 if status == _TERMINATED and not asked else status


def find_shell() -> str:
    """Return the shell of this account. One that nobody can sign in to has `/bin/sh`."""
    shell = os.environ.get("SHELL") or pwd.getpwuid(os.getuid()).pw_shell
    return "/bin/sh" if Path(shell).name in ("", "nologin", "false") else shell


def _serve(command: Sequence[str], directory: Path, most: float | None, idle: float | None) -> int:
    from det_node.terminal import SOCKET, serve_terminal

    if os.environ["DET_TRIAL_RUN_ID"] != "1":
        sys.stderr.write("det: a shell that was preempted or has lost its driver has ended\n")
        return 0
    place = Path(os.environ["DET_SCRATCH_DIR"]) / SOCKET
    serve_terminal(place, command, directory, max_seconds=most, idle_seconds=idle)
    return 0


def _open(command: Sequence[str], directory: Path, most: float | None, idle: float | None) -> int:
    from det_node.notebook import serve_notebook

    listens, *root = command
    return serve_notebook(listens, Path(*root) if root else directory, most, idle)


def _run(command: Sequence[str], directory: Path, most: float | None, idle: float | None) -> int:
    try:
        process = subprocess.Popen(command, cwd=directory)
    except OSError as error:
        # As shells do: 127 for a command that is not found.
        found = not isinstance(error, FileNotFoundError)
        why = f"{error.strerror}: {error.filename}"
        sys.stderr.write(f"det: the command cannot be started: {why}\n")
        return 126 if found else 127
    return end_in_time(process, "command", most, idle, _Usage().was_active)


class _Usage:
    """Finds out whether a command writes, or uses a CPU."""

    def __init__(self) -> None:
        self._written, self._used, self._looked = _written(), 0.0, time.monotonic()

    def was_active(self) -> bool:
        """Return whether the command was active since the last call."""
        now, written, used = time.monotonic(), _written(), cpu_seconds(os.getpid())
        # The time of processes that have ended may be lost, so it can become less.
        is_active = written != self._written or used - self._used > _BUSY * (now - self._looked)
        self._written, self._used, self._looked = written, used, now
        return is_active


def _written() -> int:
    """Return the size of the run's log, to which the command writes."""
    return os.fstat(sys.stdout.fileno()).st_size


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
