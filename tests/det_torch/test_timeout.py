"""`distributed.timeout`: how long ranks wait for one that is late."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from det_core.config import parse

RANK = """
import sys, time
import torch
from det_core import DistributedContext, Ranks
from det_node.backends import Socket
from det_torch.backends._native import Native

rank, kind, file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
ranks = Ranks(rank=rank, size=2, local_rank=rank, local_size=2, cross_rank=0, cross_size=1)
ready = lambda at: open(file, "w").write(str(at[1]))
if rank:
    while not (port := open(file).read()):
        time.sleep(0.05)
chief = ("127.0.0.1", int(port) if rank else 0)
control = DistributedContext.from_backend(Socket(ranks, chief=chief, key=bytes(32), timeout=3.0, ready=ready))
group = control if kind == "control" else Native.join(control)
if group is not control:
    group.init()
if rank:
    time.sleep(100)
began = time.monotonic()
try:
    if group is control:
        group.allgather(1)
    else:
        group.start_sum(torch.ones(1), "it")()
except Exception as error:
    print("gave up after", round(time.monotonic() - began), type(error).__name__, flush=True)
"""


@pytest.mark.process
@pytest.mark.parametrize("kind", ["control", "native"])
def test_late_rank_times_out_as_configured(tmp_path: Path, kind: str) -> None:
    (tmp_path / "port").touch()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), kind, str(tmp_path / "port")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    began = time.monotonic()
    try:
        output, _ = ranks[0].communicate(timeout=60)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert "gave up after 3 RankLost" in output or "gave up after 4 RankLost" in output
    assert time.monotonic() - began < 60


SCRIPT = """
import time
from det_core import DistributedContext, core

with DistributedContext.from_torch_distributed() as ranks, core.init(distributed=ranks) as context:
    time.sleep(100 * ranks.rank)
    try:
        ranks.allgather(1)
    except Exception as error:
        print("gave up:", type(error).__name__, flush=True)
        raise
"""


def test_script_ranks_that_torch_joins_time_out_as_configured(det, monkeypatch) -> None:
    monkeypatch.setenv("DET_SLOTS_TOTAL", "2")
    (det.cwd / "train.py").write_text(SCRIPT)
    (det.cwd / "const.yaml").write_text(
        "entrypoint: python3 -m det_node.launch.torch_distributed python3 train.py\nresources:"
        " {slots_per_trial: 2}\nsearcher: {name: single, metric: error}\nmax_restarts:"
        " 0\ndistributed: {timeout: 3}\n"
    )
    det("run", "const.yaml", "--quiet", status=1)
    assert "gave up: RankLost" in det("logs", "1").stdout


def test_the_key_of_the_configuration_is_read() -> None:
    base = {"entrypoint": "a:B", "searcher": {"name": "single", "metric": "m", "max_length": 1}}
    assert parse({**base, "distributed": {"timeout": 60}}).config.distributed.timeout == 60
    assert parse(base).config.distributed.timeout is None
