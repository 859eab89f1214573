"""Images, tables and texts that a Lightning trial logs."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from tests.det_lightning.conftest import Line

from det_core import Every, Schedule
from det_core.train.media import find_media
from det_lightning import LightningAdapter


class Trial(LightningAdapter):
    """Logs from a Lightning callback, as it has the context."""

    def __init__(self, context: Any) -> None:
        super().__init__(context, Line())

    def build_callbacks(self) -> list[pl.Callback]:
        return [Log(self.context)]


class Log(pl.Callback):
    def __init__(self, context: Any) -> None:
        self._context = context

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._context.log_image("weights", torch.zeros(1, 4, 8))
        self._context.log_table("table", {"step": [trainer.global_step]})
        self._context.log_text("said", f"step {trainer.global_step}")


def test_a_callback_logs_at_the_batches_of_its_validation(lab: Any) -> None:
    schedule = Schedule(report=Every(1), validate=Every(3), policy="none")
    lab(Trial, 6, schedule=schedule, tensorboard_dir=lab.root)
    found = [(each.name, each.kind, each.batches) for each in find_media(lab.root / "media")]
    assert found == [
        (*of, at)
        for of in (("said", "text"), ("table", "table"), ("weights", "image"))
        for at in (3, 6)
    ]
    assert (lab.root / "media/said/6.txt").read_text() == "step 6"
