"""Ranks that det launched meet over their framework.

`DistributedContext` finds the plugin that knows how.
"""

from __future__ import annotations

import importlib.util
import sys

import pytest

SAY = """
with CONTEXT as ranks:
    print(ranks.rank, ranks.size, ranks.local_rank, ranks.cross_size, ranks.allgather(ranks.rank), ranks.agree(ranks.rank == 1))
"""


def needs(*modules: str) -> None:
    for name in modules:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def both(stdout: str) -> list[str]:
    return sorted(
        line.partition("] ")[2] for line in stdout.splitlines() if line.startswith("[rank=")
    )


EXPECTED = ["0 2 0 1 [0, 1] True", "1 2 1 1 [0, 1] True"]


def test_torch(det):
    needs("torch", "det_torch")
    det.cwd.joinpath("train.py").write_text(
        "from det_core import DistributedContext"
        + SAY.replace("CONTEXT", "DistributedContext.from_torch_distributed()")
    )
    assert both(det("launch", "torch", "-np", "2", sys.executable, "train.py").stdout) == EXPECTED
    assert (
        det("launch", "torch", "-np", "1", sys.executable, "train.py").stdout
        == "0 1 0 1 [0] False\n"
    )


def test_horovod(det):
    needs("torch", "det_torch", "horovod")
    det.cwd.joinpath("train.py").write_text(
        "import horovod.torch as hvd\nfrom det_core import DistributedContext"
        + SAY.replace("CONTEXT", "DistributedContext.from_horovod(hvd)")
    )
    assert both(det("launch", "horovod", "-np", "2", sys.executable, "train.py").stdout) == EXPECTED
    assert (
        det("launch", "horovod", "-np", "1", sys.executable, "train.py").stdout
        == "0 1 0 1 [0] False\n"
    )


@pytest.mark.parametrize(
    ("name", "module", "context", "pickling"),
    [
        (
            "torch",
            "torch.distributed",
            "from_torch_distributed()",
            "all_gather_object, broadcast_object_list",
        ),
        ("horovod", "horovod.torch", "from_horovod(its)", "allgather_object, broadcast_object"),
    ],
)
def test_script_objects_are_not_pickled_over_the_framework(det, name, module, context, pickling):
    """Whose connections nobody authenticates; det's have the key of the launch."""
    needs("torch", "det_torch", name)
    det.cwd.joinpath("train.py").write_text(
        f"import {module} as its\nfrom det_core import DistributedContext\n"
        f"for name in {pickling.split(', ')}: delattr(its, name)\n"
        + SAY.replace("CONTEXT", f"DistributedContext.{context}")
    )
    assert both(det("launch", name, "-np", "2", sys.executable, "train.py").stdout) == EXPECTED


TORCH = """
import torch
from det_core import DistributedContext, core

with DistributedContext.from_torch_distributed() as ranks, core.init(distributed=ranks) as context:
    weight = torch.full((1,), float(ranks.rank))
    torch.distributed.all_reduce(weight)
    for operation in context.searcher.operations():
        if ranks.rank == 0:
            context.train.report_validation_metrics(operation.length, {"error": weight.item()})
            operation.report_completed(weight.item())
"""


def test_a_script_of_torch_under_det_run(det, monkeypatch):
    needs("torch", "det_torch")
    monkeypatch.setenv("DET_SLOTS_TOTAL", "2")
    det.cwd.joinpath("train.py").write_text(TORCH)
    det.cwd.joinpath("const.yaml").write_text(
        "entrypoint: python3 -m det_node.launch.torch_distributed -- python3 train.py\n"
        "resources: {slots_per_trial: 2}\n"
        "max_restarts: 0\n"
        "searcher: {name: single, metric: error, max_length: {batches: 3}}\n"
    )
    result = det.json("run", "const.yaml")
    assert (result["state"], result["best_metric"]) == ("COMPLETED", 1.0)


def test_tensorflow(det, monkeypatch):
    needs("tensorflow", "det_keras")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    det.cwd.joinpath("train.py").write_text(
        "from det_core import DistributedContext\ncontext, strategy ="
        " DistributedContext.from_tf_config()" + SAY.replace("CONTEXT", "context")
    )
    done = det(
        "launch", "tensorflow", "-np", "2", "--start-timeout", "90", sys.executable, "train.py"
    )
    assert [line for line in both(done.stdout) if line in EXPECTED] == EXPECTED


def test_horovod_finds_a_rank_that_does_not_come_in_time(det):
    needs("torch", "horovod")
    det.cwd.joinpath("train.py").write_text(
        "import os, time\nif os.environ['HOROVOD_RANK'] == '1': time.sleep(100)\nimport"
        " horovod.torch as hvd\nhvd.init()\n"
    )
    done = det(
        "launch",
        "horovod",
        "-np",
        "2",
        "--start-timeout",
        "3",
        sys.executable,
        "train.py",
        status=None,
    )
    assert done.returncode not in (0, 2)
    assert "det: rank 0 " in done.stderr
    assert " first; the others were ended." in done.stderr
