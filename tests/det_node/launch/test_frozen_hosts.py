"""A host that is frozen or cut off: the launcher gives it up, by name."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from det_node.launch._launch import SILENCE_SECONDS


def test_the_silence_that_is_borne_is_a_minute() -> None:
    assert SILENCE_SECONDS == 60


@pytest.mark.parametrize("still", [True, False])
def test_a_frozen_host_is_given_up_and_a_quiet_one_is_not(
    launch, hosts, note, ranks, all_gone, still: bool
) -> None:
    process = launch.impatient(8, note + "time.sleep(100)", *hosts.options(1, 1))
    pids = ranks(2)
    starter = int(Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[1])
    if still:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(12)
        process.kill()
    else:
        os.kill(starter, signal.SIGSTOP)
        output, _ = process.communicate(timeout=40)
        assert process.returncode == 2
        assert (
            f"det: the host {hosts.names[1]!r} has said nothing for 8 s; it is frozen or cannot be"
            " reached" in output
        )
    all_gone(pids)
