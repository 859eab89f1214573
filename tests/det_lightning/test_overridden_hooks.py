"""Modules with hooks that Determined's LightningAdapter refused are trained like any other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from tests.det_lightning.conftest import Line, records, trial_of
from tests.det_lightning.users import quiet
from torch.utils.data import DataLoader, Dataset

from det_core import Every, Schedule

REFUSED = (
    *(
        "backward",
        "get_progress_bar_dict",
        "manual_backward",
        "on_fit_start",
        "on_fit_end",
        "on_pretrain_routine_start",
    ),
    *(
        "on_pretrain_routine_end",
        "on_test_batch_start",
        "on_test_batch_end",
        "on_test_epoch_start",
        "on_test_epoch_end",
    ),
    *(
        "on_train_epoch_end",
        "optimizer_step",
        "optimizer_zero_grad",
        "setup",
        "tbptt_split_batch",
        "teardown",
    ),
    *(
        "test_dataloader",
        "test_epoch_end",
        "test_step",
        "test_step_end",
        "training_step_end",
        "transfer_batch_to_device",
    ),
    "validation_step_end",
)
# From Lightning itself, since 2.0 or before: methods of these names are the module's own affair.
GONE = {
    *(
        "get_progress_bar_dict",
        "on_pretrain_routine_start",
        "on_pretrain_routine_end",
        "tbptt_split_batch",
        "test_epoch_end",
    ),
    *("test_step_end", "training_step_end", "validation_step_end"),
}
OF_TESTS = {name for name in REFUSED if "test" in name}
LENGTH = 10


def overriding(hook: str, calls: list[str]) -> type[Line]:
    """Return a module that overrides a hook, notes its calls, and does what Lightning would."""

    def own(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(hook)
        base = getattr(LightningModule, hook, None)
        return base(self, *args, **kwargs) if base and hook != "test_step" else None

    members: dict[str, Any] = {hook: own}
    if hook == "test_dataloader":
        members[hook] = lambda self: DataLoader(records(2))
    if hook == "manual_backward":
        members |= {"training_step": manual_step, "__init__": manual_init}
    return type("Overriding", (Line,), members)


def manual_init(self: Any) -> None:
    Line.__init__(self)
    self.automatic_optimization = False


def manual_step(self: Any, batch: Any, batch_idx: int) -> Any:
    optimizer, loss = self.optimizers(), self.loss(batch)
    optimizer.zero_grad()
    self.manual_backward(loss)
    optimizer.step()
    self.log("loss", loss)


def test_there_are_two_dozen() -> None:
    assert len(set(REFUSED)) == 24


@pytest.mark.parametrize("hook", REFUSED)
def test_module_that_overrides_a_hook_trains_as_one_without(lab: Any, hook: str) -> None:
    calls: list[str] = []
    schedule = Schedule(report=Every(1), validate=Every(4), policy="none")
    ran = lab(trial_of(overriding(hook, calls)), LENGTH, schedule=schedule)
    plain = lab(trial_of(Line), LENGTH, schedule=schedule)
    assert ran.losses == plain.losses
    assert ran.validation == plain.validation
    expected = {
        "on_train_epoch_end": 2,
        "optimizer_step": LENGTH,
        "optimizer_zero_grad": LENGTH,
        "backward": LENGTH,
        "manual_backward": LENGTH,
        "transfer_batch_to_device": LENGTH + 2 * 3,
        "teardown": 1,
        "setup": 1,
        "on_fit_start": 1,
        "on_fit_end": 1,
    }
    assert len(calls) == (0 if hook in GONE | OF_TESTS else expected[hook])


def test_a_batch_that_a_hook_passes_over_ends_its_epoch(lab: Any) -> None:
    """`on_train_batch_start` may return -1.

    The rest of the epoch is not trained, and the next one begins anew.
    """
    seen: list[tuple[int, int, float]] = []

    class Short(Line):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            return -1 if batch_idx == 3 else None

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append((self.current_epoch, batch_idx, float(batch[0].sum())))
            return super().training_step(batch, batch_idx)

    lab(trial_of(Short), 7)
    assert [(epoch, batch) for epoch, batch, _ in seen] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
    ]
    assert len({total for _, _, total in seen[:3]}) == 3


def test_hooks_come_in_lightnings_order(lab: Any) -> None:
    """At the end of an epoch, det validates before the hooks that end it, as Lightning does."""
    order: list[str] = []

    class Told(Line):
        def train_dataloader(self) -> Any:
            return DataLoader(records(4), batch_size=2)

        def on_train_epoch_start(self) -> None:
            order.append("epoch")

        def on_train_batch_end(self, *args: Any) -> None:
            order.append("batch")

        def on_validation_end(self) -> None:
            order.append("validated")

        def on_train_epoch_end(self) -> None:
            order.append("end")

        def on_train_end(self) -> None:
            order.append("over")

    lab(trial_of(Told), 3, schedule=Schedule(validate=Every(2), policy="none"))
    assert order == [
        "epoch",
        "batch",
        "batch",
        "validated",
        "end",
        "epoch",
        "batch",
        "validated",
        "end",
        "over",
    ]


def test_a_module_may_end_its_trial(lab: Any) -> None:
    class Stopping(Line):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.trainer.should_stop = batch_idx == 3
            return super().training_step(batch, batch_idx)

    ran = lab(trial_of(Stopping), 50)
    assert ran.stop.value == "stopped by the trial"
    assert (max(ran.training), list(ran.validation), list(ran.checkpoints)) == (4, [4], [4])


def test_a_mean_of_gradients_is_stepped_as_lightning_does(lab: Any) -> None:
    """Behind every third batch, and behind the last one of an epoch."""
    steps: list[int] = []

    class Counting(Line):
        def optimizer_step(self, epoch: int, batch_idx: int, *args: Any) -> None:
            steps.append(epoch * 8 + batch_idx + 1)
            super().optimizer_step(epoch, batch_idx, *args)

    lab(trial_of(Counting, accumulate_grad_batches=3), 12)
    assert steps == [3, 6, 8, 11]


def test_gradients_are_clipped(lab: Any) -> None:
    norms: list[float] = []

    class Clipped(Line):
        def on_before_zero_grad(self, optimizer: Any) -> None:
            found = [p.grad for p in self.parameters() if p.grad is not None]
            if found:
                norms.append(float(torch.stack([g.norm() for g in found]).norm()))

    lab(trial_of(Clipped, gradient_clip_val=0.01), 6)
    assert max(norms) <= 0.0101


class Levels(Dataset[Any]):
    """Gives the level that it has where it is read."""

    level = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(self.level))


@pytest.mark.process
def test_workers_see_what_a_hook_changes_where_an_epoch_starts(lab: Any) -> None:
    """In each epoch, like Lightning, which starts the workers of an epoch after that hook."""

    class Module(Line):
        def __init__(self) -> None:
            super().__init__()
            self.levels = Levels()

        def on_train_epoch_start(self) -> None:
            self.levels.level = self.current_epoch

        def train_dataloader(self) -> Any:
            return DataLoader(self.levels, batch_size=2, num_workers=1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            seen.append(int(batch[0, 0]))
            return super().training_step((batch,), batch_idx)

    seen: list[int] = []
    quiet(max_epochs=2, limit_val_batches=0).fit(Module())
    alone, seen = seen, []
    lab(trial_of(Module), 4)
    assert alone == seen == [0, 0, 1, 1]
