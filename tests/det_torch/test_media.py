"""Images, tables and texts that a PyTorch trial logs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from det_core import DistributedContext, Every, Schedule
from det_core.errors import ArgumentError
from det_core.train.media import Media, find_media
from det_torch import PyTorchTrialContext
from det_torch.testing import OneVarTrial

RAMP = torch.arange(6 * 4 * 3, dtype=torch.uint8).reshape(6, 4, 3)
SCHEDULE = Schedule(report=Every(1), validate=Every(2), policy="none")


class Logging(OneVarTrial):
    """Logs a text in each batch, and an image and a table in each validation.

    They have the number of its run.
    """

    run = 1

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.context.log_text("said", f"run {self.run}")
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
        self.context.log_image("validation/ramp", RAMP)
        self.context.log_table(
            "table", {"batch": [torch.tensor(batch_idx)], "x": torch.tensor([0.5])}
        )
        return super().evaluate_batch(batch, batch_idx)


def read(root: Path) -> dict[str, list[int]]:
    """Return the positions of each name."""
    found: dict[str, list[int]] = {}
    for each in find_media(root / "tensorboard/media"):
        found.setdefault(f"{each.kind} {each.name}", []).append(each.batches)
    return found


def test_a_trial_logs_at_the_batches_that_it_has_trained(lab: Any) -> None:
    lab(Logging, 4, schedule=SCHEDULE)
    assert read(lab.root) == {
        "text said": [0, 1, 2, 3],
        "table table": [2, 4],
        "image validation/ramp": [2, 4],
    }
    table = json.loads((lab.root / "tensorboard/media/table/4.json").read_text())
    assert table["columns"] == ["batch", "x"]


def test_resumed_run_replaces_media_logged_after_its_checkpoint(lab: Any) -> None:
    first = lab(Logging, 2, schedule=SCHEDULE)
    Media(lab.root / "tensorboard").log_text("said", "after the checkpoint", 2)
    again = type("Again", (Logging,), {"run": 2})
    lab(again, 4, schedule=SCHEDULE, checkpoint=first.checkpoints[2])
    folder = lab.root / "tensorboard/media/said"
    assert [(folder / f"{each}.txt").read_text() for each in range(4)] == [
        "run 1",
        "run 1",
        "run 2",
        "run 2",
    ]


def test_another_rank_neither_reads_nor_writes(lab: Any) -> None:
    second = DistributedContext()
    second.rank = 1
    context = PyTorchTrialContext(replace(lab.info(), distributed=second), torch.device("cpu"))
    context.log_image("seen", object())
    context.log_table("seen", object())
    context.log_text("seen", "text")
    assert read(lab.root) == {}


def test_a_tensor_has_its_channels_first_or_last(lab: Any) -> None:
    image = pytest.importorskip("PIL.Image")
    first = RAMP.permute(2, 0, 1)
    given = [
        RAMP,
        first,
        (first / 255).to(torch.bfloat16).requires_grad_(),
        first[:1],
        RAMP[:, :, 0],
    ]
    for batches, tensor in enumerate(given):
        lab.context().log_image("seen", tensor, batches)
    seen = [
        np.asarray(image.open(lab.root / f"tensorboard/media/seen/{each}.png")).astype(int)
        for each in range(5)
    ]
    assert (seen[0] == RAMP.numpy()).all()
    assert (seen[1] == RAMP.numpy()).all()
    assert np.abs(seen[2] - RAMP.numpy()).max() <= 1
    assert (seen[3] == RAMP[:, :, 0].numpy()).all()
    assert (seen[4] == RAMP[:, :, 0].numpy()).all()


def test_a_batch_of_images_is_refused_at_the_line_of_the_trial(lab: Any) -> None:
    with pytest.raises(
        ArgumentError,
        match=r"^test_media\.py:\d+: log_image\(image=float32 of shape \(2, 3, 4, 4\)\): give one",
    ):
        lab.context().log_image("seen", torch.zeros(2, 3, 4, 4))
