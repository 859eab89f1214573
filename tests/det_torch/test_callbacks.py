"""Callbacks: their order, their states, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from det_core import At, Every, Schedule, Stop, TrialError
from det_torch import ClipGradsL2Norm, ClipGradsL2Value, PyTorchCallback
from det_torch.callbacks import Callbacks
from det_torch.testing import OneVarTrial

SHORT = {"global_batch_size": 2, "batches_per_epoch": 3}


class Diary(PyTorchCallback):
    """Notes every hook with what tells calls apart."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        self.notes.append(("startup", first_batch_idx, checkpoint_uuid))

    def on_trial_shutdown(self) -> None:
        self.notes.append("shutdown")

    def on_before_optimizer_step(self, parameters: Iterator[Any]) -> None:
        self.notes.append(("step", all(parameter.grad is not None for parameter in parameters)))

    def on_training_start(self) -> None:
        self.notes.append("training start")

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.notes.append(("epoch start", epoch_idx))

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.notes.append(("epoch end", epoch_idx))

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        self.notes.append(("workload end", avg_metrics["batches"], len(batch_metrics)))

    def on_validation_start(self) -> None:
        self.notes.append("validation start")

    def on_validation_epoch_start(self) -> None:
        self.notes.append("validation epoch start")

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        self.notes.append(("validation epoch end", len(outputs)))

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.notes.append(("validation end", sorted(metrics)))

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        self.notes.append(("load start", sorted(checkpoint["callbacks"])))

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        self.notes.append(("save start", sorted(checkpoint["callbacks"])))

    def on_checkpoint_write_end(self, checkpoint_dir: Any) -> None:
        self.notes.append(("write end", (checkpoint_dir / "state_dict.pth").exists()))

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.notes.append(("upload end", type(uuid)))

    def state_dict(self) -> dict[str, Any]:
        self.notes.append("state_dict")
        return {"seen": 1}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.notes.append(("load_state_dict", state_dict))


def diarist(notes: list[Any], fail_at: int | None = None) -> type[OneVarTrial]:
    """Return a trial class that notes what is called when."""

    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            notes.append("__init__")
            super().__init__(context)

        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            notes.append("build_callbacks")
            return {"diary": Diary(notes)}

        def build_training_data_loader(self) -> Any:
            notes.append("build training data")
            return super().build_training_data_loader()

        def build_validation_data_loader(self) -> Any:
            notes.append("build validation data")
            return super().build_validation_data_loader()

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            notes.append(("train", epoch_idx, batch_idx))
            if batch_idx == fail_at:
                raise ArithmeticError("the trial fails")
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            notes.append("evaluate")
            return super().evaluate_batch(batch, batch_idx)

    return Trial


BUILT = ["build_callbacks", ("startup", 0, None), "build training data", "build validation data"]
VALIDATED = [
    *("validation start", "validation epoch start", "evaluate", ("validation epoch end", 1)),
    ("validation end", ["val_loss", "weight"]),
]
STEP = ("step", True)
SAVED = ["state_dict", ("save start", ["diary"]), ("write end", True), ("upload end", str)]


def test_every_hook_is_called_in_its_place(lab: Any) -> None:
    """A run of four batches, three to an epoch, with a validation before the first."""
    notes: list[Any] = []
    lab(
        diarist(notes),
        4,
        hparams=SHORT,
        schedule=Schedule(report=Every(2), validate=Every(2), policy="none", validate_first=True),
    )
    assert notes == [
        *("__init__", *BUILT, "training start", *VALIDATED),
        *(
            ("epoch start", 0),
            ("train", 0, 0),
            STEP,
            ("train", 0, 1),
            STEP,
            ("workload end", 2, 2),
            *VALIDATED,
        ),
        *(
            ("train", 0, 2),
            STEP,
            ("epoch end", 0),
            ("epoch start", 1),
            ("train", 1, 3),
            STEP,
            ("workload end", 4, 2),
        ),
        *(*VALIDATED, *SAVED, "shutdown"),
    ]


def test_run_resumed_within_an_epoch_does_not_restart_it(lab: Any) -> None:
    """Startup hears of the position and of the checkpoint.

    State comes back before training starts.
    """
    first = lab(diarist([]), 2, hparams=SHORT)
    notes: list[Any] = []
    lab(diarist(notes), 3, hparams=SHORT, checkpoint=first.checkpoints[2])
    assert notes == [
        *("__init__", "build_callbacks", ("startup", 2, first.checkpoints[2])),
        *("build training data", "build validation data"),
        *(("load start", ["diary"]), ("load_state_dict", {"seen": 1}), "training start"),
        *(
            ("train", 0, 2),
            STEP,
            ("epoch end", 0),
            ("workload end", 3, 1),
            *VALIDATED,
            *SAVED,
            "shutdown",
        ),
    ]


def test_a_run_resumed_at_an_epochs_end_starts_the_next(lab: Any) -> None:
    first = lab(diarist([]), 3, hparams=SHORT)
    notes: list[Any] = []
    lab(diarist(notes), 4, hparams=SHORT, checkpoint=first.checkpoints[3])
    assert [note for note in notes if note[0] in ("epoch start", "epoch end")] == [
        ("epoch start", 1)
    ]


def test_warm_start_begins_at_batch_0_with_callback_states(lab: Any) -> None:
    first = lab(diarist([]), 2, hparams=SHORT)
    notes: list[Any] = []
    lab(diarist(notes), 1, hparams=SHORT, checkpoint=first.checkpoints[2], trial_id=2)
    assert ("startup", 0, first.checkpoints[2]) in notes
    assert ("load_state_dict", {"seen": 1}) in notes
    assert ("train", 0, 0) in notes


def test_error_in_on_checkpoint_write_end_loses_no_checkpoint(lab: Any) -> None:
    class Failing(PyTorchCallback):
        def on_checkpoint_write_end(self, checkpoint_dir: Path) -> None:
            raise OSError("cannot upload")

    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"failing": Failing()}

    with pytest.raises(OSError, match="cannot upload"):
        lab(Trial, 2)
    (uuid,) = lab.storage.list()
    resumed = lab(OneVarTrial, 4, checkpoint=uuid)
    assert resumed.validation[4] == lab(OneVarTrial, 4).validation[4]


def test_shutdown_comes_after_an_error_in_training(lab: Any) -> None:
    notes: list[Any] = []
    with pytest.raises(ArithmeticError, match="the trial fails"):
        lab(diarist(notes, fail_at=1), 4)
    assert notes[-2:] == [("train", 0, 1), "shutdown"]


def test_shutdown_comes_after_an_error_while_data_is_built(lab: Any) -> None:
    notes: list[Any] = []

    class Trial(diarist(notes)):  # type: ignore[misc]
        def build_validation_data_loader(self) -> Any:
            raise FileNotFoundError("no such data")

    with pytest.raises(FileNotFoundError):
        lab(Trial, 4)
    assert notes[-1] == "shutdown"


def test_shutdown_is_for_every_callback_though_one_fails() -> None:
    notes: list[Any] = []

    class Failing(PyTorchCallback):
        def on_trial_shutdown(self) -> None:
            raise OSError("cannot close")

    with pytest.raises(OSError, match="cannot close"):
        Callbacks({"failing": Failing(), "diary": Diary(notes)}).shut_down()
    assert notes == ["shutdown"]


def test_callbacks_are_called_in_the_order_of_the_dict() -> None:
    notes: list[Any] = []

    class Named(PyTorchCallback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_training_start(self) -> None:
            notes.append(self.name)

    Callbacks({"z": Named("z"), "a": Named("a")})("on_training_start")
    assert notes == ["z", "a"]


def test_the_start_of_an_epoch_may_take_no_argument(lab: Any) -> None:
    """As before 0.17.8."""
    notes: list[str] = []

    class Old(PyTorchCallback):
        def on_training_epoch_start(self) -> None:  # type: ignore[override]
            notes.append("epoch")

    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"old": Old()}

    lab(Trial, 4, hparams=SHORT)
    assert notes == ["epoch", "epoch"]


def test_the_oldest_names_of_validation_hooks_are_called(lab: Any) -> None:
    notes: list[Any] = []

    class Old(PyTorchCallback):
        def on_validation_step_start(self) -> None:
            notes.append("start")

        def on_validation_step_end(self, metrics: dict[str, Any]) -> None:
            notes.append(sorted(metrics))

    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"old": Old()}

    lab(Trial, 1)
    assert notes == ["start", ["val_loss", "weight"]]


def test_the_older_name_of_write_end_is_called_with_a_warning(lab: Any) -> None:
    paths: list[Any] = []

    class Old(PyTorchCallback):
        def on_checkpoint_end(self, checkpoint_dir: str) -> None:
            paths.append(checkpoint_dir)

    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"old": Old()}

    with pytest.warns(
        FutureWarning, match="'old' overrides on_checkpoint_end; override on_checkpoint_write_end"
    ):
        lab(Trial, 1)
    assert [type(path) for path in paths] == [str]


def test_full_evaluation_skips_validation_epoch_hooks(lab: Any) -> None:
    notes: list[Any] = []

    class Full(diarist(notes)):  # type: ignore[misc]
        evaluate_batch = OneVarTrial.__mro__[1].evaluate_batch

        def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
            return {"batches_seen": len(list(data_loader))}

    lab(Full, 1)
    assert [note for note in notes if "validation" in str(note)] == [
        *("build validation data", "validation start", ("validation end", ["batches_seen"]))
    ]


def test_report_of_several_batches_has_the_metrics_of_each(lab: Any) -> None:
    seen: list[Any] = []

    class Keeping(PyTorchCallback):
        def on_training_workload_end(
            self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
        ) -> None:
            seen.append((avg_metrics, batch_metrics))

    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"keeping": Keeping()}

    lab(Trial, 5, schedule=Schedule(report=Every(5), policy="none"))
    ((average, each),) = seen
    assert average["loss"] == pytest.approx(sum(row["loss"] for row in each) / 5)
    assert (average["batches"], average["epochs"]) == (5, 1.0)
    assert [sorted(row) for row in each] == [["loss"]] * 5


def test_a_trials_own_metric_of_the_name_batches_is_kept(lab: Any) -> None:
    seen: list[Any] = []

    class Keeping(PyTorchCallback):
        def on_training_workload_end(
            self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
        ) -> None:
            seen.append(avg_metrics["batches"])

    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"keeping": Keeping()}

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            return {**super().train_batch(batch, epoch_idx, batch_idx), "batches": 77}

    ran = lab(Trial, 1)
    assert seen == [77]
    assert ran.training[1]["batches"] == 77


def test_callback_may_change_a_checkpoint_at_save_and_load(lab: Any) -> None:
    found: list[Any] = []

    class Changing(PyTorchCallback):
        def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["note"] = "of mine"

        def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
            found.append(checkpoint["note"])
            checkpoint["models_state_dict"][0]["weight"].fill_(0.5)

    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"changing": Changing()}

    first = lab(Trial, 1)
    second = lab(
        Trial,
        1,
        checkpoint=first.checkpoints[1],
        trial_id=2,
        schedule=Schedule(validate_first=True),
    )
    assert found == ["of mine"]
    assert second.validation[0]["weight"] == 0.5


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"best": object()}, r"state_dict\(\)\['best'\]"),
        ({"history": [1, {"f": print}]}, r"state_dict\(\)\['history'\]\[1\]\['f'\]"),
        ({Stop.NO: 1}, r"a key in state_dict\(\)"),
        (Stop.NO, r"state_dict\(\)"),
    ],
)
def test_callback_state_that_is_not_plain_data_is_refused(lab: Any, state: Any, place: str) -> None:
    """The sentence names the callback and the place in its state."""

    class Holding(PyTorchCallback):
        def state_dict(self) -> Any:
            return state

    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"holding": Holding()}

    with pytest.raises(
        TrialError,
        match=rf"^{place} of the callback 'holding' is \w+, which a checkpoint cannot hold",
    ):
        lab(Trial, 1)


def test_callback_without_a_saved_state_starts_with_a_warning(lab: Any) -> None:
    first = lab(OneVarTrial, 1)
    with pytest.warns(UserWarning, match="no state of the callback 'diary'; it starts afresh"):
        lab(diarist([]), 2, checkpoint=first.checkpoints[1])


def test_a_callback_that_wants_no_state_is_no_matter(lab: Any) -> None:
    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"plain": PyTorchCallback()}

    first = lab(OneVarTrial, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lab(Trial, 2, checkpoint=first.checkpoints[1])


def test_early_stopping_ends_with_a_validation_and_a_checkpoint(lab: Any) -> None:
    """And its state survives a restart."""

    class EarlyStopping(PyTorchCallback):
        def __init__(self, context: Any) -> None:
            self.context, self.bad, self.best = context, 0, float("-inf")

        def on_validation_end(self, metrics: dict[str, Any]) -> None:
            self.bad = 0 if metrics["val_loss"] > self.best else self.bad + 1
            self.best = max(self.best, metrics["val_loss"])
            if self.bad >= 3:
                self.context.set_stop_requested(True)

        def state_dict(self) -> dict[str, Any]:
            return {"bad": self.bad, "best": self.best}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self.bad, self.best = state_dict["bad"], state_dict["best"]

    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"early": EarlyStopping(self.context)}

    schedule = Schedule(report=Every(1), validate=Every(2), policy="none")
    whole = lab(Trial, 50, schedule=schedule)
    assert (whole.stop, list(whole.validation), list(whole.checkpoints)) == (
        Stop.USER_STOPPED,
        [2, 4, 6, 8],
        [8],
    )
    first = lab(Trial, 50, schedule=schedule, preempt_at=5)
    second = lab(Trial, 50, schedule=schedule, checkpoint=first.checkpoints[5])
    assert (second.stop, list(second.validation)) == (Stop.USER_STOPPED, [6, 8])


def test_what_hooks_draw_at_random_changes_no_run(lab: Any) -> None:
    """Hooks that are called once more in a resumed run draw without an effect on the training.

    So do those that are called as often as it is saved and validated.
    """

    class Drawing(PyTorchCallback):
        def draw(self, *args: Any) -> None:
            torch.rand(3)

        on_training_start = on_validation_start = on_validation_end = draw  # type: ignore[assignment]
        on_checkpoint_save_start = on_checkpoint_write_end = on_checkpoint_upload_end = draw  # type: ignore[assignment]

    class Trial(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"drawing": Drawing()}

    noisy = {"global_batch_size": 2, "noise": 0.5}
    whole = lab(Trial, 6, hparams=noisy)
    saving = Schedule(report=Every(1), validate=Every(2), checkpoint=At([3, 4]), policy="none")
    often = lab(Trial, 6, hparams=noisy, schedule=saving)
    assert often.losses == whole.losses
    resumed = lab(Trial, 6, hparams=noisy, checkpoint=often.checkpoints[3])
    assert resumed.losses == {batch: loss for batch, loss in whole.losses.items() if batch > 3}


@pytest.mark.parametrize("first", [True, False])
def test_what_is_frozen_as_training_starts_stays_frozen(lab: Any, first: bool) -> None:
    modes: list[bool] = []

    class Freezing(PyTorchCallback):
        def __init__(self, module: torch.nn.Module) -> None:
            self.module = module

        def on_training_start(self) -> None:
            self.module.eval()

    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            self.frozen = context.wrap_model(torch.nn.Sequential(torch.nn.BatchNorm1d(1)))

        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"freezing": Freezing(self.frozen[0])}

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            modes.extend((self.frozen.training, self.frozen[0].training))
            return super().train_batch(batch, epoch_idx, batch_idx)

    lab(
        Trial,
        2,
        schedule=Schedule(report=Every(1), validate=Every(1), policy="none", validate_first=first),
    )
    assert modes == [True, False] * 2


def test_gradients_are_clipped_by_the_callbacks_of_old(lab: Any) -> None:
    class ByNorm(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"clip": ClipGradsL2Norm(0.25)}

    class ByValue(OneVarTrial):
        def build_callbacks(self) -> dict[str, PyTorchCallback]:
            return {"clip": ClipGradsL2Value(0.125)}

    hparams = {"global_batch_size": 2, "lr": 1.0}
    assert lab(ByNorm, 1, hparams=hparams).validation[1]["weight"] == pytest.approx(0.25, rel=1e-4)
    assert lab(ByValue, 1, hparams=hparams).validation[1]["weight"] == pytest.approx(
        0.125, rel=1e-4
    )


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (None, "build_callbacks returned NoneType; return a dict of callbacks by name"),
        ([PyTorchCallback()], "build_callbacks returned list; return a dict of callbacks by name"),
        (
            {"mine": "x"},
            "build_callbacks returned 'x' as 'mine'; derive it from det_torch.PyTorchCallback",
        ),
    ],
)
def test_what_is_no_callback_is_refused(built: Any, message: str) -> None:
    with pytest.raises(TrialError) as refusal:
        Callbacks(built)
    assert str(refusal.value) == message
