"""A run on two ranks, one of which is killed, gives the numbers of an undisturbed one.

That holds for either backend.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.exact_resume import Disturbed

from det_node.process import is_running

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_torch"
LIMIT_SECONDS = 10

SLOW = """
import os
import time

from model_def import DigitsTrial


class SlowTrial(DigitsTrial):
    def train_batch(self, batch, epoch_idx, batch_idx):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().train_batch(batch, epoch_idx, batch_idx)
"""


@pytest.fixture(params=[pytest.param("native", marks=pytest.mark.thorough), "horovod"])
def disturbed(
    det: Any,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> Disturbed:
    """The digits on two ranks; what they leave in the temporary directory is seen."""
    if request.param == "horovod":
        pytest.importorskip("horovod.torch", reason="run: det horovod install")
    monkeypatch.setenv("DET_SLOTS_TOTAL", "2")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return Disturbed.of(
        "digits_torch",
        SLOW,
        det,
        wait_until,
        weights,
        hparams="lr: 0.05, workers: 1, augment: true",
        length=200,
        # It does not end before so many kills.
        pause=max(0.03, 0.015 * int(request.config.getoption("--kills"))),
        more=f"resources: {{slots_per_trial: 2}}\ndistributed: {{backend: {request.param}}}\n",
    )


def weights(directory: Path) -> Any:
    return torch.load(directory / "state_dict.pth", weights_only=True)["models_state_dict"]


def listening(pids: list[int]) -> set[str]:
    """The sockets on which these processes listen, as the kernel lists them."""
    inodes = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(fd).removeprefix("socket:[").rstrip("]"))
            except OSError:
                continue
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


def still_open(sockets: set[str]) -> set[str]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sockets & {row[1] for row in rows if row[3] == "0A"}


@pytest.mark.timeout(3000)
def test_killing_either_rank_at_random_moments_changes_nothing(
    disturbed: Disturbed,
    wait_until: Callable[..., None],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Within ten seconds no process of the run is left, and no port.

    At the end no temporary file. And the numbers are equal.
    """
    rng, kills = random.Random(4), int(request.config.getoption("--kills"))
    driver, done = disturbed.run(), 0
    while done < kills and driver.poll() is None:
        wait_until(
            lambda: len(disturbed.ranks()) == 2 or driver.poll() is not None, "two ranks", 60
        )
        time.sleep(rng.uniform(0.0, 8.0))
        pair = disturbed.ranks()
        if len(pair) < 2:
            continue
        sockets = listening([pid for pid, _ in pair])
        os.kill(pair[rng.randrange(2)][0], signal.SIGKILL)
        done += 1
        wait_until(
            lambda p=pair: not any(is_running(*each) for each in p),
            "the end of both ranks",
            LIMIT_SECONDS,
        )
        wait_until(
            lambda s=sockets: still_open(s) == set(), "the end of their ports", LIMIT_SECONDS
        )
    assert driver.wait(timeout=300) == 0
    assert done == kills
    assert disturbed.det.json("show", "2")["trials"][0]["restarts"] == kills
    disturbed.equals_the_undisturbed()
    # Torch keeps its cache there, and Python's multiprocessing the folder of a loader whose process
    # was killed.
    left = [path.name for path in (tmp_path / "scratch").iterdir()]
    assert [name for name in left if not name.startswith(("torchinductor_", "pymp-"))] == []
