"""Images, tables and texts that a Keras trial logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.det_keras import models

from det_core import Every, Plugins, Schedule
from det_core.train.media import find_media
from det_keras.callbacks import Callback
from det_testing import Runs


class Log(Callback):
    """Logs the weights behind each validation, as a tensor of TensorFlow's."""

    def __init__(self, context: Any) -> None:
        super().__init__()
        self._context = context

    def on_test_end(self, logs: Any = None) -> None:
        kernel, _ = self.model.trainable_variables
        self._context.log_image("weights", kernel * 0 + 0.5)
        self._context.log_table("table", {"loss": [logs["val_loss"]]})
        self._context.log_text("said", "validated")


class Trial(models.Line):
    def keras_callbacks(self) -> Any:
        return [Log(self.context)]


def test_a_callback_logs_at_the_batches_of_its_validation(plugins: Plugins, tmp_path: Path) -> None:
    schedule = Schedule(report=Every(1), validate=Every(6), policy="none")
    run = Runs(plugins, Trial, tmp_path)(12, schedule=schedule, global_batch_size=models.BATCH)
    found = [
        (each.name, each.kind, each.batches) for each in find_media(tmp_path / "tensorboard/media")
    ]
    assert found == [
        (*of, at)
        for of in (("said", "text"), ("table", "table"), ("weights", "image"))
        for at in (6, 12)
    ]
    (row,) = json.loads((tmp_path / "tensorboard/media/table/6.json").read_text())["rows"]
    assert row == [run.validations[6]["val_loss"]]
