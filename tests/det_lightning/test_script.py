"""Scripts that call `Trainer.fit` themselves, alone and under `det run`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from det_core import TrialError

EXAMPLE = Path(__file__).parents[2] / "examples" / "script_lightning"

SLOW = """
import os
import time

import lightning.pytorch as pl

import det_lightning
import train
from det_core import core


class Slow(pl.Callback):
    def on_train_batch_start(self, *args):
        time.sleep(float(os.environ.get("PAUSE", "0")))


pl.seed_everything(1)
with core.init() as context:
    x = train.torch.linspace(-1, 1, 256).reshape(-1, 1)
    data = train.TensorDataset(x, 2 * x + 1)
    loaders = train.DataLoader(data, batch_size=16, shuffle=True), train.DataLoader(data, batch_size=256)
    trainer = det_lightning.trainer(
        context, accelerator="cpu", logger=False, enable_progress_bar=False, log_every_n_steps=8, callbacks=[Slow()]
    )
    trainer.fit(train.Line(0.1), *loaders)
"""


@pytest.fixture
def project(det: Any) -> Any:
    for file in ("train.py", "const.yaml"):
        shutil.copy(EXAMPLE / file, det.cwd / file)
    (det.cwd / "slow.py").write_text(SLOW)
    (det.cwd / "slow.yaml").write_text((det.cwd / "const.yaml").read_text().replace("train.py", "slow.py"))
    return det


def test_the_example_runs_alone(tmp_path: Path) -> None:
    env = {"DET_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, EXAMPLE / "train.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "val_loss" in done.stdout


@pytest.mark.timeout(300)
def test_a_script_reports_saves_and_goes_on_where_it_was_paused(project: Any, wait_until: Any) -> None:
    det = project
    det("run", "const.yaml", "-q")
    driver = det.start("run", "slow.yaml", "-q", env={"PAUSE": "0.1"})
    wait_until(lambda: len(det.json("list")) == 2 and len(det.metrics(2)) > 1, "some training", 90)
    driver.terminate()
    assert driver.wait(timeout=90) == 130
    det("resume", "2", "-q")
    assert det.json("show", "2")["trials"][0]["runs"] == 2
    whole, paused = (
        [{k: v for k, v in row.items() if k != "trial"} for row in det.metrics(e) if row["group"] == "validation"]
        for e in (1, 2)
    )
    assert paused == whole
    assert len(whole) == 5


def test_what_is_no_core_context_is_refused() -> None:
    from det_lightning import DetCallback

    with pytest.raises(TrialError, match="DetCallback got int; give what"):
        DetCallback(3)  # type: ignore[arg-type]
