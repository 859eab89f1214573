"""Callbacks: when they are called, with what, and what of them survives a restart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from det_core import At, Every, Schedule, Stop, TrialError
from det_keras.adapter import KerasAdapter
from det_keras.callbacks import Callback, EarlyStopping, ReduceLROnPlateau, TFKerasTensorBoard
from det_keras.testing import OneVarTrial, ReportWeight
from det_keras.versions import keras

PLAN = Schedule(report=Every(3), validate=Every(5), checkpoint=At({4, 5, 8}), policy="none")


class Diary(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.lines.append("train begins")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.lines.append(f"epoch {epoch} begins")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.lines.append(f"epoch {epoch} ends: {sorted(logs)}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.lines.append(f"batch {batch}")

    def on_test_end(self, logs: Any = None) -> None:
        self.lines.append(f"validated: {sorted(logs)}")

    def on_train_workload_begin(
        self, total_batches_trained: int, batches_requested: int, logs: Any
    ) -> None:
        self.lines.append(f"workload at {total_batches_trained}")

    def on_train_workload_end(self, total_batches_trained: int, logs: Any) -> None:
        self.lines.append(f"workload ends at {total_batches_trained}: {sorted(logs)}")

    def on_train_end(self, logs: Any = None) -> None:
        self.lines.append("train ends")


def trial_with(*make: Any) -> Any:
    """Return a trial class with callbacks that `make` makes, and the list that collects them."""
    made: list[list[Any]] = []

    class Trial(OneVarTrial):
        def keras_callbacks(self) -> list[Any]:
            made.append([each() for each in make])
            return [ReportWeight(), *made[-1]]

    return Trial, made


def test_callbacks_of_epochs_validations_workloads_run_in_order(runs: Any) -> None:
    trial, made = trial_with(Diary)
    runs(trial)(6, schedule=Schedule(report=Every(5), validate=Every(5), policy="none"))
    assert made[0][0].lines == [
        "train begins",
        *("workload at 0", "epoch 0 begins", *(f"batch {n}" for n in range(5))),
        "workload ends at 5: ['loss']",
        "validated: ['val_loss', 'weight']",
        "epoch 0 ends: ['loss', 'val_loss', 'weight']",
        *(
            "workload at 5",
            "epoch 1 begins",
            "batch 0",
            "workload ends at 6: ['loss']",
            "validated: ['val_loss', 'weight']",
        ),
        "train ends",
    ]


class Counter(keras.callbacks.Callback):
    """A callback of the user's: its attributes are its state."""

    def __init__(self) -> None:
        super().__init__()
        self.batches, self.epochs, self.table = 0, [], {"seen": np.zeros(3)}

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        self.table["seen"][batch % 3] += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append((epoch, round(float(logs["loss"]), 4)))


@pytest.mark.sample
@pytest.mark.parametrize("at", [4, 5, 8])
def test_what_a_callback_holds_survives_a_restart(runs: Any, at: int) -> None:
    trial, made = trial_with(Counter)
    run = runs(trial)
    whole = run(12, schedule=PLAN)
    run(12, schedule=PLAN, checkpoint=whole.checkpoints[at])
    first, second = made[0][0], made[1][0]
    assert (second.batches, second.epochs) == (first.batches, first.epochs)
    assert second.table["seen"].tolist() == first.table["seen"].tolist()
    assert [epoch for epoch, _ in second.epochs] == [0, 1]


def test_callback_get_state_and_load_state_are_used(runs: Any) -> None:
    class Own(Callback):
        def __init__(self) -> None:
            super().__init__()
            self.given: Any = None

        def get_state(self) -> Any:
            return {"batches": [1, 2], "array": np.arange(3)}

        def load_state(self, state: Any) -> None:
            self.given = state

    trial, made = trial_with(Own)
    run = runs(trial)
    whole = run(8, schedule=PLAN)
    run(9, schedule=PLAN, checkpoint=whole.checkpoints[4])
    assert made[1][0].given["batches"] == [1, 2]
    assert made[1][0].given["array"].tolist() == [0, 1, 2]


def test_unsafe_callback_state_is_refused_at_the_save(runs: Any) -> None:
    class Own(Callback):
        def get_state(self) -> Any:
            return {"model": object()}

    with pytest.raises(
        TrialError, match="callback Own returned what a checkpoint cannot hold safely"
    ):
        runs(trial_with(Own)[0])(4)


def test_early_stopping_ends_the_trial_and_keeps_its_best_value(runs: Any) -> None:
    trial, made = trial_with(
        lambda: EarlyStopping(
            monitor="val_loss", patience=2, min_delta=0.5, restore_best_weights=True
        )
    )
    run = runs(trial)
    schedule = Schedule(report=Every(1), validate=Every(2), checkpoint=At({5}), policy="none")
    whole = run(40, schedule=schedule)
    assert whole.stop is Stop.USER_STOPPED
    second = run(40, schedule=schedule, checkpoint=whole.checkpoints[5])
    assert list(second.validations) == [at for at in whole.validations if at > 5]
    assert made[1][0].best == made[0][0].best
    assert second.weight == whole.weight


def test_keras_own_early_stopping_works_at_the_end_of_epochs(runs: Any) -> None:
    trial, _ = trial_with(
        lambda: keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=10.0)
    )
    whole = runs(trial)(40, schedule=Schedule(report=Every(5), policy="none"))
    assert whole.stop is Stop.USER_STOPPED
    assert max(whole.reports) == 10


@pytest.mark.slow
def test_plateau_lowers_learning_rate_and_survives_a_restart(runs: Any) -> None:
    trial, made = trial_with(
        lambda: ReduceLROnPlateau(monitor="val_loss", factor=0.1, patience=1, min_delta=10.0)
    )
    run = runs(trial)
    schedule = Schedule(report=Every(1), validate=Every(2), checkpoint=At({5}), policy="none")
    whole = run(12, schedule=schedule)
    assert float(made[0][0].model.optimizer.learning_rate) < 1e-4
    second = run(12, schedule=schedule, checkpoint=whole.checkpoints[5])
    assert second.losses == {at: loss for at, loss in whole.losses.items() if at > 5}


def test_tensorboard_writes_where_the_trial_s_event_files_belong(runs: Any, tmp_path: Any) -> None:
    trial, _ = trial_with(
        lambda: TFKerasTensorBoard(log_dir=str(tmp_path / "elsewhere"), update_freq=2)
    )
    runs(trial)(11, schedule=PLAN)
    assert list((tmp_path / "tensorboard").glob("**/events.out.tfevents.*"))
    assert not (tmp_path / "elsewhere").exists()


WRONG = {
    "no list": (lambda: 3, "keras_callbacks returned int; return a list"),
    "no callback": (lambda: [3], "keras_callbacks returned int in its list"),
    "ModelCheckpoint": (
        lambda: [keras.callbacks.ModelCheckpoint("x.keras")],
        "a ModelCheckpoint, but det saves and restores",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_callbacks_are_one_line_that_says_what_to_do(info: Any, name: str) -> None:
    make, message = WRONG[name]

    class Trial(OneVarTrial):
        def keras_callbacks(self) -> Any:
            return make()

    with pytest.raises(TrialError, match=message) as raised:
        KerasAdapter.create(Trial, info())
    assert "\n" not in str(raised.value)


def test_stop_requested_ends_the_trial_behind_the_batch(runs: Any) -> None:
    class Trial(OneVarTrial):
        def keras_callbacks(self) -> list[Any]:
            context = self.context

            class Stopper(keras.callbacks.Callback):
                def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                    if batch == 3:
                        context.set_stop_requested(True)

            return [ReportWeight(), Stopper()]

    run = runs(Trial)(40)
    assert (run.stop, max(run.reports)) == (Stop.USER_STOPPED, 4)
