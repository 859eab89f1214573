"""`python3 -m determined.launch.wrap_rank RANK COMMAND` runs COMMAND with a prefix for its lines.

The prefix is `[rank=RANK] `. This is for launchers of users. Those of det write the prefix
themselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from det_core.support.threads import start_thread
from det_node.launch import Prefixed, say
from det_node.lines import read_lines


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command and return its status. RANK is a number, or the variable that holds it."""
    rank, *command = [*argv[:1], *(argv[2:] if argv[1:2] == ["--"] else argv[1:])] or [""]
    number = environ.get(rank, rank)
    if not number.isdecimal() or not command:
        say(
            f"the rank is {number!r}, and the command {command}; give: RANK COMMAND, such as: 0"
            " python3 train.py"
        )
        return 2
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        say(f"cannot run {command[0]!r}: {error.strerror}; name a program")
        return 127
    # The terminal sends SIGINT to the command, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    assert process.stdout is not None
    assert process.stderr is not None
    streams = (process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)
    threads = [
        start_thread(_pass_on, *pair, int(number), name="det-output", failed=_end(process))
        for pair in streams
    ]
    for thread in threads:
        thread.join()
    status = process.wait()
    return status if status >= 0 else 128 - status


def _end(process: subprocess.Popen[bytes]) -> Callable[[BaseException], None]:
    """Return a callback that kills the command, as it would block when nobody reads its output."""
    return lambda error: process.kill()


def _pass_on(source: BinaryIO, target: BinaryIO, rank: int) -> None:
    shown = Prefixed(target)
    for data in read_lines(source.fileno()):
        shown.write(rank, data)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
