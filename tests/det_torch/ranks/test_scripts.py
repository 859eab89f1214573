"""Scripts whose ranks another launcher has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from det_testing import OneVar

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).with_name("script.py")


def run(command: list[str], cwd: Path) -> str:
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=100)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert process.returncode == 0, output
    return output


@pytest.mark.sample
@pytest.mark.parametrize("name", ["torch", "horovod"])
def test_a_script_trains_on_the_ranks_that_its_launcher_started(name: str, tmp_path: Path) -> None:
    """`init(distributed=...)` reduces gradients by what has begun already.

    All ranks have the result of the chief.
    """
    if name == "horovod" and find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    launch = [
        sys.executable,
        "-m",
        "det_driver.cli",
        "launch",
        "horovod",
        "-np",
        "2",
        "--",
        sys.executable,
    ]
    output = run([*(launch if name == "horovod" else torchrun), str(SCRIPT), name], tmp_path)
    weight = OneVar(spread=0.5, global_batch_size=4).weight(8)
    kind = "HorovodBackend" if name == "horovod" else "Native"
    assert f"rank 0 has weight {weight:.6f} by {kind}" in output
    assert f"rank 1 has weight {weight:.6f} by {kind}" in output
    if name == "torch":
        assert output.count("leaves 0 threads of Gloo") == 2
    assert output.count("complete at batch 8") == 1
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
