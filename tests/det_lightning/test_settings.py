"""What of Lightning's Trainer is det's to decide is refused, with what to set instead."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import pytorch_lightning as other
import torch
from lightning.pytorch.plugins import AsyncCheckpointIO
from pytorch_lightning.demos.boring_classes import BoringModel
from tests.det_lightning.conftest import Line, trial_of
from tests.det_lightning.users import quiet

from det_core import TrialError, core
from det_lightning import DetCallback, trainer
from det_lightning.settings import DECIDED


@pytest.mark.parametrize("name", list(DECIDED))
def test_argument_that_det_decides_is_refused_with_a_remedy(lab: Any, name: str) -> None:
    with pytest.raises(TrialError) as refusal, lab.adapter(trial_of(Line, **{name: 3})):
        pass
    assert str(refusal.value) == f"{name}=3 is not for a LightningAdapter: {DECIDED[name]}"


class Strange:
    """Something that a file of tensors and plain data cannot hold."""


def refused(
    lab: Any, message: str, make: Any = Line, config: Any = None, data: Any = None, **arguments: Any
) -> None:
    with pytest.raises(TrialError) as refusal:
        lab(trial_of(make, data, **arguments), 1, config=config)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_callback_that_saves_checkpoints_is_refused(lab: Any) -> None:
    refused(
        lab,
        "the callback ModelCheckpoint saves checkpoints",
        callbacks=[pl.callbacks.ModelCheckpoint()],
    )


def test_such_a_callback_of_the_module_is_refused_too(lab: Any) -> None:
    class Module(Line):
        def configure_callbacks(self) -> Any:
            return [pl.callbacks.ModelCheckpoint()]

    refused(lab, "set min_checkpoint_period and checkpoint_policy", Module)


@pytest.mark.parametrize("finder", [pl.callbacks.BatchSizeFinder, pl.callbacks.LearningRateFinder])
def test_a_callback_that_trains_on_its_own_is_refused(lab: Any, finder: Any) -> None:
    refused(
        lab,
        f"the callback {finder.__name__} trains on its own before the trial does",
        callbacks=[finder()],
    )


@pytest.mark.parametrize("finder", [pl.callbacks.BatchSizeFinder, pl.callbacks.LearningRateFinder])
@pytest.mark.parametrize("by", ["trainer", "DetCallback"])
def test_a_script_with_such_a_callback_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finder: Any, by: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with core.init() as context:
        if by == "trainer":
            made = quiet(partial(trainer, context), max_epochs=1, callbacks=[finder()])
        else:
            made = quiet(max_epochs=1, callbacks=[finder(), DetCallback(context)])
        with pytest.raises(
            TrialError, match=f"{finder.__name__} trains on its own .* leave it out"
        ):
            made.fit(Tuned())


class Tuned(Line):
    """Has what a tuner sets."""

    def __init__(self) -> None:
        super().__init__()
        self.lr, self.batch_size = 0.1, 2


@pytest.mark.parametrize("method", ["lr_find", "scale_batch_size"])
def test_a_tuner_of_a_scripts_trainer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It trains as such a callback does."""
    monkeypatch.chdir(tmp_path)
    with core.init() as context:
        tuner = pl.tuner.Tuner(quiet(partial(trainer, context), max_epochs=1))
        with pytest.raises(TrialError, match="Tuner with a Trainer of Lightning alone"):
            getattr(tuner, method)(Tuned())


def test_steps_that_a_tuner_limits_are_refused(lab: Any) -> None:
    """In place of epochs without end that train nothing."""

    class Tuning(Line):
        def on_train_start(self) -> None:
            self.trainer.fit_loop.epoch_loop.max_steps = 1

    refused(
        lab,
        "fit_loop.epoch_loop.max_steps was set to 1, as a tuner does that trains on its own",
        Tuning,
    )


def test_epochs_without_a_batch_end_with_the_reason(lab: Any) -> None:
    class Skipping(Line):
        def on_train_batch_start(self, *args: Any) -> int:
            return -1

    refused(
        lab,
        "1001 epochs in a row have ended before their first batch: on_train_batch_start",
        Skipping,
    )


def test_a_plugin_that_writes_checkpoints_is_refused(lab: Any) -> None:
    refused(lab, "the plugin AsyncCheckpointIO writes checkpoints", plugins=[AsyncCheckpointIO()])


def test_a_strategy_that_det_cannot_launch_is_refused(lab: Any) -> None:
    for strategy in ("ddp_spawn", "deepspeed"):
        refused(lab, f"strategy {strategy!r}: det trains with DDP or Horovod", strategy=strategy)


def test_two_numbers_of_batches_to_a_step_are_refused(lab: Any) -> None:
    config = {"optimizations": {"aggregation_frequency": 2}}
    refused(
        lab,
        "accumulate_grad_batches is 3, but optimizations",
        config=config,
        accumulate_grad_batches=3,
    )


def test_a_sum_of_gradients_is_refused(lab: Any) -> None:
    config = {"optimizations": {"aggregation_frequency": 2, "average_aggregated_gradients": False}}
    refused(
        lab, "average_aggregated_gradients is false, but Lightning always averages", config=config
    )


def test_apex_is_refused(lab: Any) -> None:
    refused(lab, "apex is no longer developed", amp_backend="apex")
    refused(lab, "amp_backend is 'other'", amp_backend="other")
    refused(lab, "amp_level is 'O9'", amp_level="O9")


def test_what_is_no_module_of_lightnings_is_refused(lab: Any) -> None:
    refused(
        lab,
        "lightning_module is Linear; it is no LightningModule of lightning.pytorch",
        lambda: torch.nn.Linear(1, 1),
    )


OTHER = "of lightning.pytorch, but of pytorch_lightning: import lightning.pytorch as pl"


def test_class_of_the_other_lightning_is_refused_with_a_remedy(lab: Any) -> None:
    refused(
        lab,
        f"lightning_module is LightningModule; it is no LightningModule {OTHER}",
        other.LightningModule,
    )
    refused(
        lab,
        f"build_callbacks gives Timer, which is no Callback {OTHER}",
        callbacks=[other.callbacks.Timer()],
    )
    refused(
        lab,
        f"datamodule is LightningDataModule; it is no LightningDataModule {OTHER}",
        data=other.LightningDataModule,
    )


def test_a_script_is_told_what_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with core.init() as context:
        make = partial(quiet, partial(trainer, context), max_epochs=1)
        with pytest.raises(TrialError, match=f"LightningModule is no LightningModule {OTHER}"):
            make().fit(other.LightningModule())
        with pytest.raises(TrialError, match=f"Timer is no Callback {OTHER}"):
            make(callbacks=[other.callbacks.Timer()])
        with pytest.raises(TrialError, match=f"Trainer is no Trainer {OTHER}"):
            quiet(other.Trainer, max_epochs=1, callbacks=[DetCallback(context)]).fit(BoringModel())


def test_what_is_no_callback_of_lightnings_is_refused(lab: Any) -> None:
    refused(
        lab,
        "build_callbacks gives int, which is no Callback of lightning.pytorch, whose Trainer",
        callbacks=[3],
    )


def test_a_constructor_that_leaves_out_ours_is_told(lab: Any) -> None:
    trial = type("Trial", (trial_of(Line),), {"__init__": lambda self, context: None})
    with pytest.raises(TrialError, match="does not call super"):
        lab(trial, 1)


@pytest.mark.parametrize(
    ("given", "config", "expected"),
    [
        (None, {}, "32-true"),
        (32, {}, "32-true"),
        ("64-true", {}, "64-true"),
        (None, {"optimizations": {"precision": "bf16"}}, "bf16-mixed"),
        ("32-true", {"optimizations": {"precision": "bf16"}}, "32-true"),
    ],
)
def test_the_precision_is_the_trials_or_the_configurations(
    lab: Any, given: Any, config: Any, expected: str
) -> None:
    with lab.adapter(trial_of(Line, precision=given), config=config) as adapter:
        assert adapter._trainer.precision == expected


def test_what_a_checkpoint_cannot_hold_is_named_when_it_is_saved(lab: Any) -> None:
    class Module(Line):
        def __init__(self, strange: Any) -> None:
            super().__init__()
            self.save_hyperparameters()

    refused(
        lab, "save_hyperparameters(), which can `ignore` it, is Strange", lambda: Module(Strange())
    )

    class Saving(Line):
        def on_save_checkpoint(self, checkpoint: Any) -> None:
            checkpoint["mine"] = {"a": Strange()}

    refused(
        lab,
        "['mine']['a'] of the checkpoint, as on_save_checkpoint() leaves it, is Strange",
        Saving,
    )

    class Callback(pl.Callback):
        def state_dict(self) -> Any:
            return {"a": Strange()}

    refused(
        lab, "Callback is Strange, which a checkpoint cannot hold safely", callbacks=[Callback()]
    )
