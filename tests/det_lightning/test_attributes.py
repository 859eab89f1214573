"""What hooks set at an epoch's start, and what is collected over it, survives a restart."""

from __future__ import annotations

import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelPruning,
)
from tests.det_lightning.conftest import Lab, records, trial_of
from tests.det_lightning.users import config, quiet
from torch.utils.data import DataLoader, Dataset

from det_core import Every, Schedule, TrialError, core
from det_lightning import DetCallback, load_trial_from_checkpoint_path, snapshot

EPOCH, LENGTH = 4, 12
# Within the first epoch with changed settings, and at the end of an epoch; the others say it again.
QUICK = (4, 6)
POSITIONS = [*QUICK, *(pytest.param(at, marks=pytest.mark.thorough) for at in (2, 5, 7, 8, 9))]
SCHEDULE = Schedule(report=Every(1), validate=Every(4), checkpoint=Every(1), policy="none")


class Parts(pl.LightningModule):
    """A backbone and a head.

    Four batches in an epoch, in one order, so that Lightning alone sees the same.
    """

    given: ClassVar[dict[str, Any]] = {}
    """What its Trainer is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.backbone = torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.0)
        )
        self.head = torch.nn.Linear(6, 1)

    def loss(self, batch: Any) -> torch.Tensor:
        (x,) = batch
        return ((self.head(self.backbone(x)) - x.sum(1, keepdim=True)) ** 2).mean()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def on_train_start(self) -> None:
        torch.manual_seed(7)

    def train_dataloader(self) -> Any:
        return DataLoader(records(EPOCH * 2), batch_size=2, generator=torch.Generator())

    def val_dataloader(self) -> Any:
        return DataLoader(records(4), batch_size=2, generator=torch.Generator())


class Thawing(Parts):
    """Its backbone is frozen until epoch 1.

    Dropout and the momentum of BatchNorm change then, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.backbone.requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.backbone.requires_grad_(True)
            self.backbone[1].momentum = 0.3
            self.backbone[2].p = 0.5


class Growing(Parts):
    """Gives its optimizer the backbone in epoch 1."""

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.head.parameters(), lr=0.05)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.trainer.optimizers[0].add_param_group(
                {"params": [*self.backbone.parameters()], "lr": 0.01}
            )


class Head(Parts):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(
            [p for p in self.parameters() if p.requires_grad], lr=0.05, momentum=0.9
        )


class Clipping(pl.Callback):
    """Clips from epoch 1 on."""

    def on_train_epoch_start(self, trainer: Any, *args: Any) -> None:
        trainer.gradient_clip_val = 0.1 if trainer.current_epoch else None


class Collecting(Parts):
    """Collects outputs as Lightning 2 shows it, and in other ways."""

    def __init__(self) -> None:
        super().__init__()
        self.outs: list[torch.Tensor] = []
        self.by_parity: dict[int, list[float]] = defaultdict(list)
        self.last: deque[float] = deque(maxlen=3)
        self.total, self.seen, self.sums = 0.0, 0, np.zeros(2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.outs.append(loss)
        self.by_parity[batch_idx % 2].append(loss.item())
        self.last.append(loss.item())
        self.total, self.seen = self.total + loss.item(), self.seen + 1
        self.sums[batch_idx % 2] += loss.item()
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("mean", torch.stack(self.outs).mean())
        self.log("even", sum(self.by_parity[0]) / len(self.by_parity[0]))
        self.log("last", sum(self.last))
        self.log("total", self.total / self.seen)
        self.log("odd", self.sums[1].item())
        self.outs.clear()
        self.by_parity.clear()
        self.total, self.seen = 0.0, 0
        self.sums = np.zeros(2)


class Collector(pl.Callback):
    """Collects, too, and has no `state_dict`."""

    def __init__(self) -> None:
        self.outs: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *args: Any) -> None:
        self.outs.append(outputs["loss"])

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        module.log("collected", torch.stack(self.outs).mean())
        self.outs.clear()


class Numbered(Parts):
    """Has rates of NumPy's, which are its hyperparameters."""

    def __init__(self, rate: Any = np.float64(0.05), decay: Any = np.float32(0.1)) -> None:  # noqa: B008
        super().__init__()
        self.save_hyperparameters()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(
            self.parameters(), lr=self.hparams.rate, weight_decay=self.hparams.decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: np.float64(0.9) ** step
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Counting(pl.Callback):
    """Has a state of NumPy's."""

    def __init__(self) -> None:
        self.counts, self.largest = np.zeros(2, np.int16), np.float32(0)

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.counts[batch_idx % 2] += 1
        self.largest = max(self.largest, np.float32(outputs["loss"].item()))

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts, "largest": self.largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts, self.largest = state["counts"], state["largest"]


class Signs(torch.optim.Optimizer):
    """Keeps a mask and a count of parameters in float32."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                if not state:
                    state["mask"] = torch.zeros_like(parameter, dtype=torch.bool)
                    state["count"] = torch.zeros_like(parameter, dtype=torch.int64)
                state["mask"] ^= parameter.grad > 0
                state["count"] += state["mask"]
                scale = torch.where(state["mask"], 0.01, 0.02) / (1 + state["count"] % 3)
                parameter.sub_(scale * parameter.grad.sign())
        return loss


class Masked(Parts):
    def configure_optimizers(self) -> Any:
        return Signs(self.parameters(), {})


class Rebuilt(Parts):
    """A curriculum: its data is built again, and is harder each time."""

    given: ClassVar[dict[str, Any]] = {"reload_dataloaders_every_n_epochs": 1}

    def harder(self, count: int) -> Any:
        data = records(count)
        data.tensors = tuple(each * (1 + self.trainer.current_epoch) for each in data.tensors)
        return DataLoader(data, batch_size=2, generator=torch.Generator())

    def train_dataloader(self) -> Any:
        return self.harder(EPOCH * 2)

    def val_dataloader(self) -> Any:
        return self.harder(4)


class RebuiltRarely(Rebuilt):
    given: ClassVar[dict[str, Any]] = {"reload_dataloaders_every_n_epochs": 2}


CASES: dict[str, tuple[type[Parts], Callable[[], list[pl.Callback]]]] = {
    "requires_grad_ of a module": (Thawing, list),
    "a group that is added": (Growing, list),
    "BackboneFinetuning": (
        Head,
        lambda: [
            BackboneFinetuning(1, lambda epoch: 1.5, backbone_initial_lr=0.01, should_align=False)
        ],
    ),
    "GradientAccumulationScheduler": (Parts, lambda: [GradientAccumulationScheduler({0: 1, 1: 3})]),
    "gradient_clip_val": (Parts, lambda: [Clipping()]),
    "outputs in a module": (Collecting, list),
    "outputs in a callback": (Parts, lambda: [Collector()]),
    "NumPy's numbers": (Numbered, lambda: [Counting()]),
    "other types in an optimizer's state": (Masked, list),
    "data that is built in each epoch": (Rebuilt, list),
    "data that is built in every second epoch": (RebuiltRarely, list),
}


def trained(lab: Lab, case: str, **run: Any) -> Any:
    module, callbacks = CASES[case]
    return lab(
        trial_of(module, callbacks=callbacks(), **module.given),
        LENGTH,
        **{"schedule": SCHEDULE, **run},
    )


def contents(lab: Lab, uuid: str) -> str:
    with lab.opened(uuid) as path:
        return str(snapshot.read(path))


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The runs that are not interrupted, by case, and what keeps them."""
    return {"lab": Lab(tmp_path_factory.mktemp("wholes"))}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_lightning_alone_trains_the_same(lab: Any, case: str) -> None:
    module, callbacks = CASES[case]
    alone = module()
    quiet(max_epochs=LENGTH // EPOCH, callbacks=callbacks(), **module.given).fit(alone)
    ran = trained(lab, case, config=config(batches=LENGTH))
    with lab.opened(ran.checkpoints[LENGTH]) as path:
        state = torch.load(path / "lightning.ckpt", weights_only=True)["state_dict"]
    assert str(state) == str(alone.state_dict())


@pytest.mark.sample(8)
@pytest.mark.slow
@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("at", POSITIONS)
@pytest.mark.parametrize("case", CASES)
def test_going_on_within_an_epoch_and_at_its_end_changes_nothing(
    wholes: dict[str, Any], case: str, at: int
) -> None:
    """Of metrics, and of all that each later checkpoint holds."""
    lab = wholes["lab"]
    if case not in wholes:
        wholes[case] = trained(lab, case)
    whole = wholes[case]
    second = trained(lab, case, checkpoint=whole.checkpoints[at])
    assert second.training == {
        batches: row for batches, row in whole.training.items() if batches > at
    }
    assert second.validation == {
        batches: row for batches, row in whole.validation.items() if batches > at
    }
    for batches, uuid in second.checkpoints.items():
        assert contents(lab, uuid) == contents(lab, whole.checkpoints[batches]), batches


def test_hyperparameters_of_numpy_are_loaded(lab: Any) -> None:
    """With det as they are, and with Lightning alone, without unpickling, as plain numbers."""
    ran = lab(trial_of(Numbered), 2, schedule=SCHEDULE)
    with lab.opened(ran.checkpoints[2]) as path:
        module = Numbered.load_from_checkpoint(path / "lightning.ckpt", weights_only=True)
        assert module.hparams == {"rate": 0.05, "decay": float(np.float32(0.1))}
        assert {type(value) for value in module.hparams.values()} == {float}
        loaded: Any = load_trial_from_checkpoint_path(path, trial_of(Numbered)).lightning_module
    assert [type(value) for value in loaded.hparams.values()] == [np.float64, np.float32]
    assert torch.equal(loaded.head.weight, module.head.weight)


class Turned(torch.nn.Module):
    """Keeps its weights transposed since its version 2, and turns those of version 1 on loading."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.w

    def _load_from_state_dict(self, saved: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version", 1) < 2:
            saved[prefix + "w"] = saved[prefix + "w"].t()
        super()._load_from_state_dict(saved, prefix, metadata, *rest)


class Versioned(Parts):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Sequential(Turned(), torch.nn.Linear(6, 1))


def test_a_module_is_loaded_as_of_the_version_that_saved_it(lab: Any) -> None:
    ran = lab(trial_of(Versioned), 2, schedule=SCHEDULE)
    with lab.opened(ran.checkpoints[2]) as path:
        loaded: Any = load_trial_from_checkpoint_path(path, trial_of(Versioned)).lightning_module
        saved = snapshot.read(path)[0]["state_dict"]["head.0.w"]
    assert torch.equal(loaded.head[0].w, saved)


class Levelled(Dataset[Any]):
    """Gives records that are as large as its level."""

    level = 1

    def __len__(self) -> int:
        return EPOCH * 2

    def __getitem__(self, index: int) -> Any:
        return (torch.full((4,), float(self.level)),)


class Curriculum(Parts):
    """Raises the level of its data where an epoch starts."""

    def __init__(self) -> None:
        super().__init__()
        self.data = Levelled()

    def train_dataloader(self) -> Any:
        return DataLoader(self.data, batch_size=2)

    def on_train_epoch_start(self) -> None:
        self.data.level = self.current_epoch + 1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        seen.append(int(batch[0][0, 0]))
        return super().training_step(batch, batch_idx)


seen: list[int] = []


@pytest.mark.parametrize("at", [6, 8])
def test_level_of_data_that_a_hook_sets_is_kept(lab: Any, at: int) -> None:
    """Although no hook sets it where a run resumes within an epoch."""
    first = lab(trial_of(Curriculum), LENGTH, schedule=SCHEDULE)
    seen.clear()
    lab(trial_of(Curriculum), LENGTH, schedule=SCHEDULE, checkpoint=first.checkpoints[at])
    assert seen == [1 + batch // EPOCH for batch in range(at, LENGTH)]


def test_level_of_data_that_a_hook_sets_is_kept_in_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Script(Curriculum)
    with core.init() as context:
        first = script(context, 6)
        seen.clear()
        script(context, None, first)
    assert seen == [2, 2, 3, 3, 3, 3]


@pytest.mark.parametrize("at", [4, 6, pytest.param(8, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("case", ["outputs in a module", "outputs in a callback"])
def test_a_preemption_loses_nothing_of_what_is_collected(lab: Any, case: str, at: int) -> None:
    """At the end of an epoch, too, where the next run makes a due validation before the hooks."""
    schedule = Schedule(report=Every(1), validate=Every(4), policy="none")
    whole = trained(lab, case, schedule=schedule)
    first = trained(lab, case, schedule=schedule, preempt_at=at)
    second = trained(lab, case, schedule=schedule, checkpoint=first.checkpoints[at])
    assert {**first.training, **second.training} == whole.training
    assert {**first.validation, **second.validation} == whole.validation


class Resetting(Collector):
    """Begins training with nothing collected.

    Each epoch but the first accumulates gradients.
    """

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.outs = []

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        trainer.accumulate_grad_batches = 2 if trainer.current_epoch else 1


class Script:
    """Trains a module as a script does, and returns the checkpoint that it ends with."""

    def __init__(self, module: type[Parts], *callbacks: Callable[[], pl.Callback]) -> None:
        self.module, self.callbacks = module, callbacks

    def __call__(self, context: Any, until: int | None, uuid: str | None = None) -> str:
        callback = DetCallback(context, report_every=1)
        callback.max_batches = until
        if uuid is not None:
            callback._fetch(uuid, from_start=False)
        callbacks = [callback, *(each() for each in self.callbacks)]
        trainer = quiet(max_epochs=LENGTH // EPOCH, callbacks=callbacks, **self.module.given)
        trainer.fit(self.module(), ckpt_path=callback.ckpt_path, weights_only=True)
        found: str = context.checkpoint._host.checkpoints[-1][0].uuid
        return found

    def goes_on_alike(self, at: int) -> None:
        """Compare all that a run saves in the end with what one saves that was interrupted."""

        def contents(uuid: str) -> str:
            with context.checkpoint.restore_path(uuid) as path:
                return str(snapshot.read(path))

        with core.init() as context:
            whole = contents(self(context, None))
            assert contents(self(context, None, self(context, at))) == whole


@pytest.mark.parametrize("at", [6, 8, 9])
def test_a_script_resumes_with_what_training_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Any, at: int
) -> None:
    """Although the hooks of `on_train_start` come behind det's."""
    monkeypatch.chdir(tmp_path)
    Script(Collecting, Resetting).goes_on_alike(at)


@pytest.mark.parametrize("paused", [False, True])
def test_script_saved_at_an_epochs_end_needs_no_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Any, paused: bool
) -> None:
    """It is behind the module's `on_train_epoch_end`, also where the run is paused there."""
    monkeypatch.chdir(tmp_path)
    script = Script(Objects)
    with warnings.catch_warnings(), core.init() as context:
        warnings.simplefilter("ignore")
        if paused:
            asked = iter([False] * 7 + [True] + [False] * LENGTH)
            monkeypatch.setattr(context.preempt, "should_preempt", lambda: next(asked))
        first = script(context, None if paused else 8)
        assert context.checkpoint.get_metadata(first)["steps_completed"] == 8
        last = script(context, None, first)
        assert context.checkpoint.get_metadata(last)["steps_completed"] == LENGTH


def test_a_script_that_a_callback_has_ended_trains_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Any
) -> None:
    """Its run is killed after its last checkpoint. The hooks that end training are called again."""
    monkeypatch.chdir(tmp_path)
    calls: list[str] = []

    class Ends(Parts):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            calls.append("batch")
            return super().training_step(batch, batch_idx)

        def on_train_end(self) -> None:
            calls.append("end")

    script = Script(Ends, lambda: EarlyStopping("val_loss", divergence_threshold=-1.0))
    with core.init() as context:
        first = script(context, None)
        assert calls == [*["batch"] * EPOCH, "end"]
        script(context, None, first)
    assert calls == [*["batch"] * EPOCH, "end", "end"]


class WatchesSteps(Parts):
    """Validated every second batch, with a scheduler that watches that."""

    given: ClassVar[dict[str, Any]] = {"val_check_interval": 2}

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, threshold=0.9)
        watched = {
            "scheduler": scheduler,
            "monitor": "val_loss",
            "interval": "step",
            "frequency": 2,
        }
        return {"optimizer": optimizer, "lr_scheduler": watched}


@pytest.mark.parametrize("at", [6, 8])
def test_script_resumed_at_a_validation_steps_schedulers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Any, at: int
) -> None:
    """Within an epoch and at its end; nor does a logger count the batch again."""
    monkeypatch.chdir(tmp_path)
    Script(WatchesSteps).goes_on_alike(at)


@pytest.mark.parametrize("module", [Rebuilt, RebuiltRarely])
def test_a_script_builds_its_data_when_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Any, module: type[Parts]
) -> None:
    monkeypatch.chdir(tmp_path)
    Script(module).goes_on_alike(6)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["a group that is added", "BackboneFinetuning"])
def test_a_warm_start_adds_groups_as_its_own_hooks_do(lab: Any, case: str) -> None:
    """And can be resumed.

    What the first groups hold, and moments of their parameters, are taken up.
    """
    source = trained(lab, case).checkpoints[9]
    whole = trained(lab, case, checkpoint=source, trial_id=2)
    assert list(whole.training) == list(range(1, LENGTH + 1))
    for at in (2, 6):
        second = trained(lab, case, checkpoint=whole.checkpoints[at], trial_id=2)
        assert second.training == {
            batches: row for batches, row in whole.training.items() if batches > at
        }
        assert contents(lab, second.checkpoints[LENGTH]) == contents(lab, whole.checkpoints[LENGTH])
    if case == "BackboneFinetuning":  # which restores the groups of its state itself
        return
    with lab.opened(source) as path:
        saved = torch.load(path / "lightning.ckpt", weights_only=True)
    alone = Growing()
    alone.load_state_dict(saved["state_dict"])
    (state,) = saved["optimizer_states"]
    firsts = state["param_groups"][0]

    class Warm(pl.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            of_first = {index: state["state"][index] for index in firsts["params"]}
            trainer.optimizers[0].load_state_dict({"state": of_first, "param_groups": [firsts]})

    quiet(max_epochs=LENGTH // EPOCH, callbacks=[Warm()]).fit(alone)
    with lab.opened(
        trained(
            lab, case, config=config(batches=LENGTH), checkpoint=source, trial_id=2
        ).checkpoints[LENGTH]
    ) as path:
        found = torch.load(path / "lightning.ckpt", weights_only=True)["state_dict"]
    assert str(found) == str(alone.state_dict())


def test_what_training_did_not_change_is_the_codes(lab: Any) -> None:
    """A run that goes on with corrected code has its values, but for those that training set."""
    seen: list[Any] = []

    class Corrected(Collecting):
        scale = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.factor = self.scale

        def on_train_batch_start(self, *args: Any) -> None:
            seen.append((self.factor, self.seen))

    class Later(Corrected):
        scale = 2.0

    first = lab(trial_of(Corrected), 6, schedule=SCHEDULE)
    seen.clear()
    lab(trial_of(Later), 7, schedule=SCHEDULE, checkpoint=first.checkpoints[6])
    assert seen == [(2.0, 2)]


def test_what_shares_memory_with_a_parameter_still_does(lab: Any) -> None:
    """It has the parameter's values already; a copy would not follow them."""

    class Shared(Parts):
        def __init__(self) -> None:
            super().__init__()
            self.same = [self.head.weight]
            self.view = self.head.weight.detach()

        def on_train_end(self) -> None:
            assert self.same[0] is self.head.weight
            assert self.view.data_ptr() == self.head.weight.data_ptr()

    first = lab(trial_of(Shared), 6, schedule=SCHEDULE)
    lab(trial_of(Shared), 8, schedule=SCHEDULE, checkpoint=first.checkpoints[6])


class Result:
    """An output that no checkpoint holds."""


class Objects(Parts):
    """Collects what a checkpoint cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.results.append(Result())
        return super().training_step(batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        assert self.results
        self.results.clear()


def warned(lab: Any, module: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        lab(trial_of(module), 7, schedule=SCHEDULE)
    return [str(each.message) for each in found if "training changes" in str(each.message)]


def test_what_cannot_be_restored_is_named_once(lab: Any) -> None:
    (said,) = warned(lab, Objects)
    assert said.startswith(
        "training changes results of the module, which holds Result and is in no checkpoint: "
    )


def test_a_metric_that_is_no_attribute_is_named(lab: Any) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")

    class Listed(Parts):
        def __init__(self) -> None:
            super().__init__()
            self.means = {"of the loss": torchmetrics.MeanMetric()}

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.means["of the loss"].update(loss.detach())
            return loss

    (said,) = warned(lab, Listed)
    assert said.startswith(
        "training changes means of the module, which holds MeanMetric and is in no checkpoint: "
    )
    assert said.endswith("make it a metric of torchmetrics that is an attribute of the module")


def test_what_a_module_saves_itself_is_not_named(lab: Any) -> None:
    class Saving(Objects):
        def on_save_checkpoint(self, checkpoint: Any) -> None:
            checkpoint["results"] = len(self.results)

    assert warned(lab, Saving) == []


def test_checkpoint_at_an_epochs_end_needs_no_collected_objects(lab: Any) -> None:
    """It is behind the hooks that empty it.

    So objects, which it cannot hold, are not missed there.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedule = Schedule(report=Every(1), validate=Every(4), checkpoint=Every(4), policy="none")
        first = lab(trial_of(Objects), 8, schedule=schedule)
        second = lab(trial_of(Objects), LENGTH, schedule=schedule, checkpoint=first.checkpoints[4])
    assert list(second.training) == list(range(5, LENGTH + 1))


class Gaining(Parts):
    """Gets a layer in epoch 1."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.second = torch.nn.Linear(6, 1)
            self.trainer.optimizers[0].add_param_group({"params": [*self.second.parameters()]})


class GainingAgain(Gaining):
    def on_load_checkpoint(self, checkpoint: Any) -> None:
        if "second.weight" in checkpoint["state_dict"]:
            self.second = torch.nn.Linear(6, 1)


class Gain(pl.Callback):
    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if trainer.current_epoch == 1:
            module.second = torch.nn.Linear(6, 1)


class LateBuffer(Parts):
    """Makes a statistic with the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", None)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        mean = batch[0].mean(0)
        self.centre = mean if self.centre is None else self.centre * 0.9 + mean * 0.1
        return self.loss([batch[0] - self.centre])


class Late(LateBuffer):
    """Makes its head in `configure_model`."""

    def __init__(self) -> None:
        super().__init__()
        del self.head

    def configure_model(self) -> None:
        if not hasattr(self, "head"):
            self.head = torch.nn.LazyLinear(1)


REFUSED = (
    r"^since the model \w+ was built, it has gained second.bias, second.weight, so that a restarted"
    r" run could not load this checkpoint; make all layers.* in its on_load_checkpoint$"
)


@pytest.mark.parametrize(("module", "callbacks"), [(Gaining, []), (Parts, [Gain])])
def test_a_module_that_training_changes_is_refused_at_a_save(
    lab: Any, module: type[Parts], callbacks: list[type[pl.Callback]]
) -> None:
    """At the first one after the change, not at the restart."""
    trial = trial_of(module, callbacks=[each() for each in callbacks])
    lab(trial, EPOCH, schedule=SCHEDULE)
    with pytest.raises(TrialError, match=REFUSED):
        lab(trial, EPOCH + 1, schedule=SCHEDULE)


class Straying(Parts):
    """Gives its optimizer a parameter that it does not have."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.trainer.optimizers[0].add_param_group(
                {"params": [torch.nn.Parameter(torch.zeros(1))]}
            )


def test_a_parameter_that_the_module_lacks_is_refused_at_a_save(lab: Any) -> None:
    lab(trial_of(Straying), EPOCH, schedule=SCHEDULE)
    refusal = r"^SGD was given a parameter .* make it an attribute of the LightningModule in its"
    with pytest.raises(TrialError, match=refusal):
        lab(trial_of(Straying), EPOCH + 1, schedule=SCHEDULE)


@pytest.mark.parametrize("callbacks", [[], [Gain]])
def test_a_script_whose_module_changes_is_refused_at_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callbacks: list[type[pl.Callback]]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Script(Parts if callbacks else Gaining, *callbacks)
    with core.init() as context:
        script(context, EPOCH)
        with pytest.raises(TrialError, match=REFUSED):
            script(context, None)


@pytest.mark.parametrize("at", [5, 8])
def test_a_module_may_change_itself_again_when_it_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Any, at: int
) -> None:
    monkeypatch.chdir(tmp_path)
    states = []
    script = Script(GainingAgain)
    with core.init() as context:
        for uuid in (script(context, None), script(context, None, script(context, at))):
            with context.checkpoint.restore_path(uuid) as path:
                states.append(str(snapshot.read(path)[0]))
    assert states[0] == states[1]


def test_a_module_that_is_made_late_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Any
) -> None:
    """In `configure_model`, and with the first batch."""
    monkeypatch.chdir(tmp_path)
    Script(Late).goes_on_alike(6)


def test_a_late_module_is_loaded_without_training(lab: Any) -> None:
    ran = lab(trial_of(LateBuffer), 2, schedule=SCHEDULE)
    with lab.opened(ran.checkpoints[2]) as path:
        loaded = load_trial_from_checkpoint_path(path, trial_of(LateBuffer))
        ((_, saved),) = [
            pair for pair in snapshot.read(path)[0]["state_dict"].items() if pair[0] == "centre"
        ]
    assert torch.equal(loaded.lightning_module.centre, saved)


def prune() -> pl.Callback:
    return ModelPruning("l1_unstructured", amount=0.3, use_lottery_ticket_hypothesis=False)


def test_a_callback_that_saves_a_module_as_it_was_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: Any
) -> None:
    """`ModelPruning` has replaced the weights by others with masks, and saves their product."""
    monkeypatch.chdir(tmp_path)
    with core.init() as context:
        script = Script(Parts, prune)
        with pytest.warns(
            UserWarning, match=r"^training has given the module backbone.0.bias_mask"
        ):
            uuid = script(context, 6)
        script(context, None, uuid)
