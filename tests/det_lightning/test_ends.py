"""Both ends of training are Lightning's.

It knows its length, and has the last word on its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, StochasticWeightAveraging
from tests.det_lightning.conftest import Line, records, trial_of
from tests.det_lightning.users import Net, Seen, config, last_state
from torch.utils.data import DataLoader

from det_core import At, Every, Schedule, Stop, hookimpl

EVERY_EPOCH = Schedule(report=Every(1), validate=Every(8), policy="none")


def same(one: Any, other: Any) -> bool:
    """Compare what is long to print."""
    return str(one) == str(other)


def lengths_of(lab: Any, length: dict[str, Any] | None, every: int = 1) -> tuple[Any, ...]:
    """Return what the trainer says of its length where optimizers are made."""
    told: list[Any] = []

    class Told(Line):
        def configure_optimizers(self) -> Any:
            trainer = self.trainer
            told.append((trainer.max_epochs, trainer.max_steps, trainer.estimated_stepping_batches))
            return super().configure_optimizers()

    given = {} if length is None else {"config": config(**length)}
    lab(trial_of(Told, accumulate_grad_batches=every), 1, hparams={"global_batch_size": 2}, **given)
    (found,) = told
    return tuple(found)


@pytest.mark.parametrize(
    ("length", "every", "expected"),
    [
        ({"epochs": 2}, 1, (2, -1, 16)),
        ({"epochs": 2}, 3, (2, -1, 6)),
        ({"batches": 20}, 1, (-1, 20, 20)),
        ({"batches": 20}, 3, (-1, 8, 8)),
        ({"records": 20}, 1, (-1, 10, 10)),
        (None, 1, (-1, -1, float("inf"))),
    ],
)
def test_the_trainer_says_how_long_it_trains_as_lightning_would(
    lab: Any, length: Any, every: int, expected: Any
) -> None:
    """In epochs, or in steps, of which there is one behind the last batch of an epoch, too."""
    assert lengths_of(lab, length, every) == expected


def test_limits_stop_nothing(lab: Any) -> None:
    """Neither steps, of which there may be two to a batch, nor epochs, which may be cut short.

    Batches are counted.
    """

    class Two(Line):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(self.loss(batch))
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.layer[i].parameters(), lr=0.05) for i in (0, 2)]

    class Short(Line):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 3 else None

    assert list(lab(trial_of(Two), 20, config=config(batches=20)).validation) == [20]
    assert list(lab(trial_of(Short), 16, config=config(epochs=2)).validation) == [16]


class Told(Line):
    """Notes the hooks of its end, and logs in the last of them that may."""

    def __init__(self, order: list[str]) -> None:
        super().__init__()
        self.told = order.append

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_validation_end(self) -> None:
        self.told("validated")

    def on_train_epoch_end(self) -> None:
        self.told("epoch")
        self.log("at_end", float(self.current_epoch))

    def on_train_end(self) -> None:
        self.told("end")

    def on_save_checkpoint(self, checkpoint: Any) -> None:
        self.told("saved")


def trained(
    lab: Any, length: int, config: Any, callbacks: Callable[[], list[Any]] = list, **run: Any
) -> Any:
    order: list[str] = []
    trial = trial_of(lambda: Told(order), callbacks=callbacks())
    return lab(trial, length, schedule=EVERY_EPOCH, config=config, **run), order


@pytest.mark.parametrize(("length", "last"), [({"epochs": 2}, 16), ({"batches": 12}, 12)])
def test_end_hooks_run_between_last_validation_and_checkpoint(
    lab: Any, length: Any, last: int
) -> None:
    """And that is one validation, where they change nothing of what it measured."""
    ran, order = trained(lab, last, config(**length))
    assert order == ["validated", "epoch", "validated", "epoch", "end", "saved"]
    assert list(ran.validation) == [8, last]


def test_the_last_report_has_what_the_last_epochs_end_logged(lab: Any) -> None:
    ran, _ = trained(lab, 16, config(epochs=2))
    assert {at: row["at_end"] for at, row in ran.training.items() if "at_end" in row} == {
        9: 0.0,
        16: 1.0,
    }


@pytest.mark.parametrize("at", [5, 8, 12, 16])
def test_preempted_run_leaves_the_end_hooks_to_the_next(lab: Any, at: int) -> None:
    """It saves what training left, and the next run ends as one that was not interrupted."""
    whole, _ = trained(lab, 16, config(epochs=2))
    first, before = trained(lab, 16, config(epochs=2), preempt_at=at)
    second, after = trained(lab, 16, config(epochs=2), checkpoint=first.checkpoints[at])
    assert first.stop is Stop.PREEMPTED
    assert "end" not in before
    hooks = [hook for hook in before + after if hook != "saved"]
    assert hooks == ["validated", "epoch", "validated", "epoch", "end"]
    assert {**first.validation, **second.validation} == whole.validation
    assert {**first.training, **second.training} == whole.training
    assert same(last_state(lab, second), last_state(lab, whole))


@pytest.mark.slow
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("at", [16, 21, 32])
def test_weights_are_averaged_behind_a_preemption_and_once(lab: Any, norm: bool, at: int) -> None:
    def trial() -> Any:
        return trial_of(lambda: Net(Seen(), norm), callbacks=[StochasticWeightAveraging(0.01, 0.5)])

    length = config(epochs=4)
    whole = lab(trial(), 32, schedule=EVERY_EPOCH, config=length)
    first = lab(trial(), 32, schedule=EVERY_EPOCH, config=length, preempt_at=at)
    second = lab(trial(), 32, schedule=EVERY_EPOCH, config=length, checkpoint=first.checkpoints[at])
    third = lab(trial(), 32, schedule=EVERY_EPOCH, config=length, checkpoint=second.checkpoints[32])
    states = [last_state(lab, ran)["state_dict"] for ran in (whole, second)]
    assert same(*states)
    assert not same(last_state(lab, first)["state_dict"], states[0])
    assert second.validation[32] == whole.validation[32]
    assert third.checkpoints == {}


def test_a_report_is_of_the_weights_that_are_saved(lab: Any) -> None:
    """Measured behind the averaging.

    The checkpoint, evaluated by the module alone, gives the same number.
    """
    trial = trial_of(lambda: Net(Seen()), callbacks=[StochasticWeightAveraging(0.01, 0.5)])
    ran = lab(trial, 32, schedule=EVERY_EPOCH, config=config(epochs=4))
    module = Net(Seen())
    module.load_state_dict(last_state(lab, ran)["state_dict"])
    trainer = pl.Trainer(
        logger=False, enable_progress_bar=False, enable_checkpointing=False, accelerator="cpu"
    )
    module.configure_optimizers = lambda: None
    (found,) = trainer.validate(module, verbose=False)
    assert found["val_loss"] == ran.validation[32]["val_loss"]


def test_a_trial_that_a_callback_stops_ends_as_lightning_does(lab: Any) -> None:
    ran, order = trained(
        lab, 80, config(epochs=10), lambda: [EarlyStopping("val_loss", patience=0, min_delta=100.0)]
    )
    assert ran.stop is Stop.USER_STOPPED
    assert order == ["validated", "epoch", "validated", "epoch", "end", "saved"]


def test_end_hooks_follow_the_last_checkpoint_at_unknown_length(lab: Any) -> None:
    """There may be more to train, so a run that is preempted calls none.

    Those that end the epoch come before it, where it ends.
    """
    order: list[str] = []
    lab(trial_of(lambda: Told(order)), 8, schedule=EVERY_EPOCH)
    assert order == ["validated", "epoch", "saved", "end"]
    order.clear()
    lab(trial_of(lambda: Told(order)), 8, schedule=EVERY_EPOCH, preempt_at=5)
    assert order == ["saved"]


def test_a_validation_before_training_is_no_end(lab: Any) -> None:
    """A fit that trains nothing calls no hook of the end."""
    order: list[str] = []
    with lab.adapter(trial_of(lambda: Told(order))) as adapter:
        assert adapter.batches_per_epoch == 8
        adapter.validate()
    assert order == ["validated"]


def test_plugins_may_wrap_optimizers_and_schedulers(lab: Any) -> None:
    class Plugin:
        @hookimpl(wrapper=True)
        def det_build_optimizer(self) -> Any:
            optimizer = yield
            optimizer.param_groups[0]["lr"] = 0.25
            return optimizer

        @hookimpl(wrapper=True)
        def det_build_lr_scheduler(self) -> Any:
            found = yield
            return torch.optim.lr_scheduler.ConstantLR(found.optimizer, factor=1.0)

    rates: list[float] = []

    class Stepped(Line):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

        def on_train_batch_end(self, *args: Any) -> None:
            rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])

    lab.plugins.register(Plugin(), "wrapping")
    lab(trial_of(Stepped), 3)
    assert rates == [0.25] * 3


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_module_is_trained_and_goes_on(lab: Any, backend: str) -> None:
    """Equal to one that is not, as these backends generate no code of their own."""

    class Small(Line):
        def __init__(self) -> None:
            super().__init__()
            self.layer[1] = torch.nn.Identity()

        def train_dataloader(self) -> Any:
            return DataLoader(records(16), batch_size=2)

    def compiled() -> Any:
        module = Small()
        module.compile(backend=backend)
        return module

    schedule = Schedule(report=Every(1), checkpoint=At({5}), policy="none")
    plain = lab(trial_of(Small), 12, schedule=schedule)
    ran = lab(trial_of(compiled), 12, schedule=schedule)
    again = lab(trial_of(compiled), 12, schedule=schedule, checkpoint=ran.checkpoints[5])
    assert ran.losses == plain.losses
    assert again.losses == {at: loss for at, loss in plain.losses.items() if at > 5}
    assert same(last_state(lab, again)["state_dict"], last_state(lab, plain)["state_dict"])
