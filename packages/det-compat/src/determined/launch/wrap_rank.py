"""`python3 -m determined.launch.wrap_rank RANK COMMAND`: what COMMAND writes, with `[rank=RANK] ` before each line.

For launchers of the user's own; those of det write the prefix themselves.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from det_core.launch import Prefixed, say

_AT_ONCE = 1 << 16


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command to its end; return its status. RANK is a number, or the name of the variable that holds it."""
    rank, *command = [*argv[:1], *(argv[2:] if argv[1:2] == ["--"] else argv[1:])] or [""]
    number = environ.get(rank, rank)
    if not number.isdecimal() or not command:
        say(f"the rank is {number!r}, and the command {command}; give: RANK COMMAND, such as: 0 python3 train.py")
        return 2
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        say(f"cannot run {command[0]!r}: {error.strerror}; name a program")
        return 127
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells the command, too
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    assert process.stdout is not None
    assert process.stderr is not None
    streams = (process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)
    threads = [threading.Thread(target=_pass_on, args=(*pair, int(number))) for pair in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status = process.wait()
    return status if status >= 0 else 128 - status


def _pass_on(source: BinaryIO, target: BinaryIO, rank: int) -> None:
    shown = Prefixed(target)
    while True:
        ready, _, _ = select.select([source], [], [], shown.show_quiet())
        if not ready:
            continue
        data = os.read(source.fileno(), _AT_ONCE)
        if not data:
            break
        shown.write(rank, data)
    shown.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
