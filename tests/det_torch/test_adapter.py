"""The adapter under core's loop: batches, metrics, stops, checkpoints."""

from __future__ import annotations

import math
import multiprocessing
import sys
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from det_core import Every, Schedule, Stop, TrialError
from det_torch import DataLoader
from det_torch.testing import OneVarTrial, Records


def returning(make: Any) -> type[OneVarTrial]:
    """Return a trial whose `train_batch` trains and returns what `make(loss, batch_idx)` gives."""

    class Trial(OneVarTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            return make(super().train_batch(batch, epoch_idx, batch_idx)["loss"], batch_idx)

    return Trial


# Metrics


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda loss, n: loss, "loss"),
        (lambda loss, n: loss.item(), "loss"),
        (lambda loss, n: {"error": loss}, "error"),
        (lambda loss, n: {"error": loss.reshape(1)}, "error"),
        (lambda loss, n: {"error": loss.detach().numpy()}, "error"),
        (lambda loss, n: {"error": np.float32(loss.item())}, "error"),
        (lambda loss, n: {"error": loss.item()}, "error"),
    ],
)
def test_metrics_may_come_in_any_form_that_is_a_number(lab: Any, make: Any, name: str) -> None:
    plain = lab(OneVarTrial, 3)
    ran = lab(returning(make), 3)
    assert {n: metrics[name] for n, metrics in ran.training.items()} == pytest.approx(plain.losses)
    assert {type(metrics[name]) for metrics in ran.training.values()} == {float}


@pytest.mark.parametrize("odd", ["text", torch.ones(3), np.ones((2, 2)), {"a": 1.0}, [1.0, 2.0]])
def test_what_is_no_number_is_left_out_and_named_once(lab: Any, odd: Any) -> None:
    with pytest.warns(
        UserWarning, match="metric 'odd' is .*; it is left out of the reports"
    ) as warned:
        ran = lab(returning(lambda loss, n: {"loss": loss, "odd": odd}), 3)
    assert len([w for w in warned if "'odd'" in str(w.message)]) == 1
    assert [sorted(metrics) for metrics in ran.training.values()] == [
        ["batches", "epochs", "loss"]
    ] * 3


def test_none_is_no_value(lab: Any) -> None:
    """As are names that only some batches have: a report is the mean of those that there are."""

    def sometimes(loss: Any, n: int) -> dict[str, Any]:
        return {
            "loss": loss,
            "even": float(n) if n % 2 == 0 else None,
            **({"odd": n} if n % 2 else {}),
        }

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ran = lab(returning(sometimes), 4, schedule=Schedule(report=Every(4), policy="none"))
    assert (ran.training[4]["even"], ran.training[4]["odd"]) == (1.0, 2.0)


def test_metric_keeps_its_batch_value_if_tensor_changes_later(lab: Any) -> None:
    """A running average that is kept in one buffer, in a dict of its own too."""
    running = torch.zeros(())
    trial = returning(lambda loss, n: {"running": running.fill_(n)})
    assert (
        lab(trial, 4, schedule=Schedule(report=Every(4), policy="none")).training[4]["running"]
        == 1.5
    )


def test_metrics_keep_no_graph(lab: Any) -> None:
    from det_torch.metrics import kept

    graph = torch.ones((), requires_grad=True) * 2
    found = kept({"a": graph, "b": [graph, {"c": graph}]})
    assert not any(t.requires_grad for t in (found["a"], found["b"][0], found["b"][1]["c"]))


@pytest.mark.parametrize(("wrong", "kind"), [(None, "NoneType"), ("0.5", "str"), ([0.5], "list")])
def test_train_batch_returns_a_loss_or_a_dict(lab: Any, wrong: Any, kind: str) -> None:
    with pytest.raises(TrialError) as refusal:
        lab(returning(lambda loss, n: wrong), 1)
    assert (
        str(refusal.value)
        == f"train_batch returned {kind}; return the loss, or a dict of metrics by name"
    )


def test_not_a_number_is_reported_as_it_is(lab: Any) -> None:
    loss = lab(returning(lambda loss, n: loss * float("nan")), 1).losses[1]
    assert math.isnan(loss)


# Batches


class Nested(OneVarTrial):
    """Batches in dicts, lists and tuples, as arrays and tensors."""

    kinds: Any = None

    def build_training_data_loader(self) -> Any:
        def collate(records: list[torch.Tensor]) -> Any:
            x = torch.stack(records)
            return {"x": [x, {"deep": (x.numpy(), "text")}], "n": len(records)}

        return DataLoader(Records([1.0, 1.2, 1.4, 1.6]), batch_size=2, collate_fn=collate)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        deep, text = batch["x"][1]["deep"]
        type(self).kinds = (type(batch["x"][0]), type(deep), text, batch["n"])
        return super().train_batch(torch.as_tensor(deep), epoch_idx, batch_idx)


def test_nested_batches_of_arrays_come_as_tensors(lab: Any) -> None:
    lab(Nested, 3)
    assert Nested.kinds == (torch.Tensor, torch.Tensor, "text", 2)


def test_batches_are_left_alone_where_the_trial_asks_for_that(lab: Any) -> None:
    class Alone(Nested):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.experimental.disable_auto_to_device()

    lab(Alone, 1)
    assert Alone.kinds == (torch.Tensor, np.ndarray, "text", 2)


def test_arrays_of_the_validation_come_as_tensors_too(lab: Any) -> None:
    class Trial(OneVarTrial):
        def build_validation_data_loader(self) -> Any:
            return [np.array([[1.0], [2.0]], dtype=np.float32)]

        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            return {"tensor": isinstance(batch, torch.Tensor)}

    assert lab(Trial, 1).validation[1]["tensor"] == 1


def test_batches_go_to_the_device_of_the_context(lab: Any) -> None:
    """The meta device stands for one that is not the CPU."""
    from det_torch.device import Moving

    context = lab.context()
    context.device = torch.device("meta")
    moving = Moving(context)
    for _ in range(2):
        assert moving.needed
        assert moving({"x": torch.ones(1)})["x"].device.type == "meta"


def test_cpu_tensors_are_not_moved_after_the_first_batch(lab: Any) -> None:
    from det_torch.device import Moving

    moving = Moving(lab.context())
    batch = [torch.ones(1), {"n": 3}]
    assert moving(batch)[0] is batch[0]
    assert not moving.needed


def test_a_batch_costs_sixteen_calls_of_functions_here(lab: Any) -> None:
    """From its indices to its share of a report.

    Nothing is entered, looked up or asked again that cannot have changed.
    """
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        name = frame.f_globals["__name__"]
        if (
            event == "call"
            and name.startswith(("det_core", "det_torch", "contextlib"))
            and name != "det_torch.testing"
        ):
            calls[frame.f_code.co_name] += 1

    class Trial(OneVarTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx % 100 == 0:
                sys.setprofile(note if batch_idx == 100 else None)
            return super().train_batch(batch, epoch_idx, batch_idx)

    lab(Trial, 300, schedule=Schedule(report=Every(50), policy="none"))
    assert calls["step_optimizer"] == 100
    assert calls.total() < 1600, calls.most_common()


def test_a_torch_loader_trains_like_ours(lab: Any) -> None:
    class Torch(OneVarTrial):
        def build_training_data_loader(self) -> Any:
            ours = super().build_training_data_loader()
            return torch.utils.data.DataLoader(ours.dataset, batch_size=2)

    assert lab(Torch, 12).losses == lab(OneVarTrial, 12).losses


@pytest.mark.parametrize("split", ["training", "validation"])
def test_a_method_that_builds_no_loader_is_named(lab: Any, split: str) -> None:
    trial = type("Trial", (OneVarTrial,), {f"build_{split}_data_loader": lambda self: None})
    with pytest.raises(TrialError) as refusal, lab.adapter(trial):
        pass
    method = f"build_{split}_data_loader"
    assert (
        str(refusal.value)
        == f"{method} returned NoneType; return a data loader or an iterable of batches"
    )


# Lengths


def test_global_batch_size_is_the_hyperparameter_or_the_loaders(lab: Any) -> None:
    class Loader(OneVarTrial):
        def build_training_data_loader(self) -> Any:
            return DataLoader(Records([1.0] * 12), batch_size=4)

    class Listed(OneVarTrial):
        def build_training_data_loader(self) -> Any:
            return [torch.ones(2, 1)]

        def __init__(self, context: Any) -> None:
            context._run.hparams.pop("global_batch_size", None)
            super().__init__(context)

    with lab.adapter(Loader, hparams={"global_batch_size": 6}) as adapter:
        assert (adapter.global_batch_size, adapter.batches_per_epoch) == (6, 3)
    with lab.adapter(Loader, hparams={}) as adapter:
        assert adapter.global_batch_size == 4
    with lab.adapter(Listed) as adapter:
        assert (adapter.global_batch_size, adapter.batches_per_epoch) == (None, 1)


# Stops


def test_a_trial_may_ask_for_its_end(lab: Any) -> None:
    """It ends behind that batch: reported, validated, saved, complete."""

    class Trial(OneVarTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            if batch_idx == 2:
                self.context.set_stop_requested(True)
            assert self.context.get_stop_requested() is (batch_idx == 2)
            return super().train_batch(batch, epoch_idx, batch_idx)

    ran = lab(Trial, 50, schedule=Schedule(report=Every(10), policy="none"))
    assert ran.stop is Stop.USER_STOPPED
    assert (list(ran.training), list(ran.validation), list(ran.checkpoints)) == ([3], [3], [3])


def test_stop_requested_before_training_follows_the_first_batch(lab: Any) -> None:
    class Trial(OneVarTrial):
        def __init__(self, context: Any) -> None:
            super().__init__(context)
            context.set_stop_requested(True)

    ran = lab(Trial, 50)
    assert (ran.stop, list(ran.training)) == (Stop.USER_STOPPED, [1])


def test_quick_trains_one_batch_and_validates_one(lab: Any) -> None:
    batches: list[str] = []

    class Trial(OneVarTrial):
        def build_validation_data_loader(self) -> Any:
            return DataLoader(Records([1.0, 2.0, 3.0]), batch_size=1)

        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            batches.append("validated")
            return super().evaluate_batch(batch, batch_idx)

    lab(Trial, 1, quick=True)
    assert batches == ["validated"]


# Manners


def test_models_train_in_training_mode_behind_a_validation_too(lab: Any) -> None:
    modes: list[bool] = []

    class Trial(OneVarTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            modes.append(self.model.training)
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch: Any, batch_idx: int) -> Any:
            modes.append(self.model.training)
            return super().evaluate_batch(batch, batch_idx)

    lab(
        Trial,
        2,
        schedule=Schedule(report=Every(1), validate=Every(1), policy="none", validate_first=True),
    )
    assert modes == [False, True, False, True, False]


@pytest.mark.process
def test_loader_workers_end_with_the_run_though_it_fails(lab: Any) -> None:
    before = set(multiprocessing.active_children())
    during: set[Any] = set()

    class Failing(OneVarTrial):
        def build_training_data_loader(self) -> Any:
            return DataLoader(Records([1.0, 2.0]), num_workers=1)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            during.update(multiprocessing.active_children())
            raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError):
        lab(Failing, 1)
    assert len(during - before) == 1
    assert set(multiprocessing.active_children()) <= before


def test_one_trial_may_be_trained_run_after_run(lab: Any) -> None:
    """As a notebook does: what an earlier run left behind does not count."""
    from contextlib import closing
    from dataclasses import replace

    from det_core import CheckpointSink, LocalHost, Target
    from det_core.train.run import locate, restore, train_from
    from det_torch.adapter import TorchAdapter
    from det_torch.build import build_trial

    config = {"optimizations": {"aggregation_frequency": 2}}
    info, keep = lab.info(config=config), CheckpointSink(storage=lab.storage)
    context = lab.context(config=config)
    trial = build_trial(OneVarTrial, context)
    framework = lab.plugins.frameworks()["torch"]
    checkpoints: dict[int, str] = {}
    losses: dict[int, float] = {}
    schedule = Schedule(report=Every(1), policy="none")
    for length, start in ((3, None), (9, 3), (6, 3)):
        info = locate(
            replace(info, checkpoint=checkpoints.get(start) if start else None), lab.storage
        )
        context.begin(info)
        host = LocalHost(Target(n=length))
        with closing(TorchAdapter(trial, context, info)) as adapter:
            progress = restore(adapter, framework, info, lab.storage) if start else None
            train_from(
                progress, adapter, framework, info, host, keep, schedule=lambda adapter: schedule
            )
        checkpoints |= {manifest.batches: manifest.uuid for manifest, _ in host.checkpoints}
        losses |= {
            batches: metrics["loss"]
            for group, batches, metrics in host.history
            if group == "training"
        }
    assert losses == lab(OneVarTrial, 9, config=config).losses
