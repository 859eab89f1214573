"""The order in which callbacks are called at an epoch's end.

That of Keras alone, and once, wherever checkpoints lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from det_core import At, Schedule
from det_keras.testing import OneVarTrial
from det_keras.versions import keras
from det_testing import OneVar

EPOCH, LENGTH = 5, 10


class Order(keras.callbacks.Callback):
    """Notes when it is called, and the logs of epochs; its notes survive a restart."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Any] = []
        self.logs: list[dict[str, float]] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.notes.append(f"epoch {epoch} begins")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.notes.append(f"batch {batch}")

    def on_test_begin(self, logs: Any = None) -> None:
        self.notes.append("validation begins")

    def on_test_end(self, logs: Any = None) -> None:
        self.notes.append("validation ends")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.notes.append(f"epoch {epoch} ends")
        self.logs.append({name: float(value) for name, value in logs.items()})


def trial() -> tuple[type, list[Order]]:
    made: list[Order] = []

    class Trial(OneVarTrial):
        def keras_callbacks(self) -> list[Any]:
            made.append(Order())
            return [made[-1]]

    return Trial, made


def plain(*, validates: bool) -> Order:
    """Return what Keras alone says of the same training."""
    settings, order = OneVar(), Order()
    x = np.array([settings.records(batch) for batch in range(EPOCH)], dtype="float32").reshape(
        -1, 1
    )
    unseen = np.array(settings.validation_records(), dtype="float32").reshape(-1, 1)
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(settings.lr), "mse")
    validation = (unseen, unseen) if validates else None
    fitting = {
        "batch_size": settings.global_batch_size,
        "epochs": LENGTH // EPOCH,
        "shuffle": False,
        "verbose": 0,
    }
    model.fit(x, x, **fitting, validation_data=validation, callbacks=[order])
    return order


@pytest.mark.slow
@pytest.mark.parametrize("validates", [True, False])
def test_an_epoch_ends_behind_its_validation_and_once(runs: Any, validates: bool) -> None:
    """Saved behind its last batch, before or after callbacks hear of its end.

    Which it is depends on whether it validates there.
    """
    kind, made = trial()
    run, lr = runs(kind), OneVar().lr
    validate = At({EPOCH, LENGTH} if validates else set())
    schedule = Schedule(
        report=At({LENGTH}), validate=validate, checkpoint=At({EPOCH}), policy="none"
    )
    whole = run(LENGTH, schedule=schedule, lr=lr)
    run(LENGTH, schedule=schedule, checkpoint=whole.checkpoints[EPOCH], lr=lr)
    alone = plain(validates=validates)
    for order in made:
        notes = order.notes
        if not validates:
            # det measures at the target.
            notes = [note for note in notes if not note.startswith("validation")]
        assert notes == alone.notes
        for mine, logs in zip(order.logs, alone.logs, strict=True):
            assert {name: mine[name] for name in logs} == pytest.approx(logs, rel=1e-5)
    assert made[1].logs == made[0].logs
