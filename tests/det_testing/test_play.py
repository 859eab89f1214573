"""How the kit starts ranks, and what it says of those that failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from det_testing import _play

pytestmark = pytest.mark.process


def test_ranks_that_fail_between_polls_are_not_reported_late(tmp_path: Path) -> None:
    processes = []
    for rank in range(2):
        (tmp_path / f"rank-{rank}.log").write_text(f"rank {rank} cannot\n")
        processes.append(subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]))
        processes[-1].wait(60)
    with pytest.raises(RuntimeError, match="rank 0 ended with status 3:\nrank 0 cannot"):
        _play._await(processes, tmp_path, 60)


def test_ranks_in_a_deep_folder_can_send_tensors(tmp_path: Path) -> None:
    """`multiprocessing` binds sockets in the folder of temporary files; their paths are limited."""
    deep = tmp_path / ("deep" * 25)
    deep.mkdir()
    script = (
        "import tempfile; from multiprocessing.connection import Listener;"
        "Listener(family='AF_UNIX').close(); tempfile.mkstemp(prefix='kept')"
    )
    _play.together([[sys.executable, "-c", script]], deep, 60)
    kept = [each.name for each in (deep / "scratch").glob("kept*")]
    assert len(kept) == 1
