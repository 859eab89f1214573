"""What the kit says of ranks that failed."""

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
