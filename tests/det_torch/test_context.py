"""The context of a trial: what it wraps, what it knows, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from det_core import DetError, TrialError
from det_torch import LRScheduler
from det_torch.testing import OneVarTrial

BATCH = LRScheduler.StepMode.STEP_EVERY_BATCH


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_what_is_wrapped_is_registered_in_order(lab: Any) -> None:
    context = lab.context()
    models = [context.wrap_model(nn.Linear(1, n)) for n in (1, 2)]
    optimizers = [context.wrap_optimizer(sgd(model)) for model in models]
    raw = StepLR(optimizers[1], 1)
    assert context.wrap_lr_scheduler(raw, BATCH, frequency=3) is raw
    assert (context.models, context.optimizers) == (models, optimizers)
    (wrapped,) = context.lr_schedulers
    assert (wrapped.scheduler, wrapped.step_mode, wrapped.frequency) == (raw, BATCH, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.wrap_model("net"), "wrap_model got str; give a torch.nn.Module"),
        (
            lambda c: c.wrap_optimizer(nn.Linear(1, 1)),
            "wrap_optimizer got Linear; give a torch.optim.Optimizer",
        ),
        (
            lambda c: c.wrap_optimizer(sgd(nn.Linear(1, 1)), backward_passes_per_step=0),
            "backward_passes_per_step is 0; give a number of 1 or more",
        ),
        (
            lambda c: c.wrap_lr_scheduler(StepLR(sgd(nn.Linear(1, 1)), 1), BATCH),
            (
                "the LR scheduler's optimizer is not wrapped; use an optimizer that"
                " wrap_optimizer() returned"
            ),
        ),
        (
            lambda c: c.wrap_lr_scheduler("cosine", BATCH),
            (
                "the LR scheduler's optimizer is not wrapped; use an optimizer that"
                " wrap_optimizer() returned"
            ),
        ),
        (lambda c: c.set_stop_requested(1), "set_stop_requested got 1; give True or False"),
        (
            lambda c: c.set_enable_tensorboard_logging("no"),
            "set_enable_tensorboard_logging got 'no'; give True or False",
        ),
        (
            lambda c: c.current_train_batch(),
            "training has not started; ask for the batch in train_batch()",
        ),
        (
            lambda c: c.is_epoch_start(),
            "training has not started; ask for the batch in train_batch()",
        ),
        (
            lambda c: c.is_epoch_end(),
            "training has not started; ask for the batch in train_batch()",
        ),
        (
            lambda c: c.current_train_epoch(),
            "training has not started; ask for the batch in train_batch()",
        ),
    ],
)
def test_a_mistake_is_one_sentence(lab: Any, call: Any, message: str) -> None:
    with pytest.raises(TrialError) as refusal:
        call(lab.context())
    assert str(refusal.value) == message


def test_a_built_scheduler_must_be_of_the_wrapped_optimizer_too(lab: Any) -> None:
    context = lab.context()
    with pytest.raises(TrialError, match="the LR scheduler's optimizer is not wrapped"):
        context.add_lr_scheduler(LRScheduler(StepLR(sgd(nn.Linear(1, 1)), 1), BATCH))


def test_scheduler_with_a_metric_or_wrong_step_mode_is_refused(lab: Any) -> None:
    context = lab.context()
    optimizer = context.wrap_optimizer(sgd(nn.Linear(1, 1)))
    with pytest.raises(TrialError, match="ReduceLROnPlateau needs a metric"):
        context.wrap_lr_scheduler(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), BATCH)
    with pytest.raises(TypeError, match="step_mode is 2; give one of"):
        context.wrap_lr_scheduler(StepLR(optimizer, 1), 2)
    assert context.lr_schedulers == []


def test_hyperparameters_are_read_one_by_one_or_together(lab: Any) -> None:
    """And nobody can change those of the run by what they are given."""
    context = lab.context(hparams={"lr": 0.1, "net": {"layers": [1, 2]}})
    assert context.get_hparam("lr") == 0.1
    assert context.get_hparams() == {"lr": 0.1, "net": {"layers": [1, 2]}}
    context.get_hparam("net")["layers"].append(3)
    context.get_hparams()["net"]["layers"].append(3)
    assert context.get_hparams() == {"lr": 0.1, "net": {"layers": [1, 2]}}


def test_a_missing_hyperparameter_is_named_with_those_there_are(lab: Any) -> None:
    with pytest.raises(ValueError, match=r"^no hyperparameter 'lr'; there are: momentum, width$"):
        lab.context(hparams={"width": 1, "momentum": 0}).get_hparam("lr")
    with pytest.raises(
        ValueError,
        match=r"^no hyperparameter 'widht'; did you mean 'width'\? there are: momentum, width$",
    ):
        lab.context(hparams={"width": 1, "momentum": 0}).get_hparam("widht")
    with pytest.raises(ValueError, match=r"^no hyperparameter 'lr'; there are: none$"):
        lab.context(hparams={}).get_hparam("lr")


def test_batch_sizes_come_from_one_hyperparameter(lab: Any) -> None:
    context = lab.context(hparams={"global_batch_size": 32})
    assert (context.get_global_batch_size(), context.get_per_slot_batch_size()) == (32, 32)
    with pytest.warns(
        UserWarning,
        match=r"is the batch of all ranks; a data loader wants get_per_slot_batch_size\(\)",
    ):
        assert context.get_hparam("global_batch_size") == 32


@pytest.mark.parametrize("size", [0, -1, 2.5, "32", True])
def test_a_batch_size_that_cannot_be_is_refused(lab: Any, size: Any) -> None:
    with pytest.raises(
        TrialError,
        match=f"^global_batch_size is {size!r}; give a whole number of at least 1, one for",
    ):
        lab.context(hparams={"global_batch_size": size}).get_per_slot_batch_size()


def test_without_the_hyperparameter_there_is_no_batch_size(lab: Any) -> None:
    context = lab.context(hparams={})
    for ask in (context.get_global_batch_size, context.get_per_slot_batch_size):
        with pytest.raises(
            ValueError,
            match=r"^no hyperparameter 'global_batch_size'; add it to the configuration$",
        ):
            ask()


def test_facts_of_the_run_can_be_asked_for(lab: Any) -> None:
    data = {"url": "s3://x", "parts": [1]}
    context = lab.context(
        config={"data": data, "name": "mine"}, experiment_id=7, trial_id=3, seed=11, first_batch=40
    )
    assert context.get_experiment_config()["name"] == "mine"
    assert (context.get_experiment_id(), context.get_trial_id(), context.get_trial_seed()) == (
        7,
        3,
        11,
    )
    assert context.get_initial_batch() == 40
    context.get_data_config()["parts"].append(2)
    assert context.get_data_config() == data
    assert (context.distributed.rank, context.distributed.size) == (0, 1)
    assert context.device == torch.device("cpu")


def test_outside_of_an_experiment_there_are_harmless_values(lab: Any) -> None:
    context = lab.context()
    assert (
        context.get_experiment_id(),
        context.get_data_config(),
        context.get_initial_batch(),
    ) == (0, {}, 0)


def test_the_position_is_known_while_training(lab: Any) -> None:
    seen: list[Any] = []

    class Trial(OneVarTrial):
        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            c = self.context
            assert (c.current_train_batch(), c.current_train_epoch()) == (batch_idx, epoch_idx)
            seen.append((batch_idx, c.get_initial_batch(), c.is_epoch_start(), c.is_epoch_end()))
            return super().train_batch(batch, epoch_idx, batch_idx)

    hparams = {"global_batch_size": 2, "batches_per_epoch": 3}
    first = lab(Trial, 2, hparams=hparams)
    lab(Trial, 4, hparams=hparams, checkpoint=first.checkpoints[2])
    assert seen == [
        (0, 0, True, False),
        (1, 0, False, False),
        (2, 2, False, True),
        (3, 2, True, False),
    ]


def test_data_without_a_length_is_one_epoch(lab: Any) -> None:
    seen: list[Any] = []

    class Trial(OneVarTrial):
        def build_training_data_loader(self) -> Any:
            while True:
                yield torch.ones(2, 1)

        def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
            c = self.context
            seen.append((epoch_idx, c.current_train_epoch(), c.is_epoch_start(), c.is_epoch_end()))
            return super().train_batch(batch, epoch_idx, batch_idx)

    with pytest.warns(UserWarning, match="has no state_dict"):
        ran = lab(Trial, 2)
    assert seen == [(0, 0, True, False), (0, 0, False, False)]
    assert "epochs" not in ran.training[1]


def test_to_device_moves_tensors_in_any_container(lab: Any) -> None:
    moved = lab.context().to_device({"x": [torch.ones(1), (torch.zeros(1), "text")]})
    assert (moved["x"][0].item(), moved["x"][1][1]) == (1, "text")


def test_reproducibility_checks_need_no_switching_off(lab: Any) -> None:
    lab.context().experimental.disable_dataset_reproducibility_checks()


def test_unmanaged_context_only_registers(lab: Any) -> None:
    """That of a trial which is loaded to be used."""
    from det_torch.context import PyTorchTrialContext

    context = PyTorchTrialContext(
        lab.info(config={"optimizations": {"compile": True, "precision": "bf16"}}),
        torch.device("cpu"),
        managed=False,
    )
    model = nn.Linear(1, 1)
    assert context.wrap_model(model) is model
    assert type(model) is nn.Linear
    optimizer = sgd(model)
    assert context.wrap_optimizer(optimizer) is optimizer
    context.wrap_lr_scheduler(StepLR(optimizer, 1), BATCH)
    context.get_tensorboard_writer().add_scalar("x", 1.0, 1)
    assert len(context.models) == len(context.optimizers) == len(context.lr_schedulers) == 1
    assert not (lab.root / "tensorboard").exists()


def test_reducers_of_the_first_versions_are_those_of_the_context(lab: Any) -> None:
    context = lab.context()
    total = context.experimental.wrap_reducer(sum, name="total", for_validation=False)
    total.update(2)
    total.update(3)
    assert context.experimental.reduce_metrics(for_training=True) == {"total": 5}
    assert context.experimental.reduce_metrics(for_training=False) == {}
    context.experimental.reset_reducers()
    assert context.experimental.reduce_metrics(for_training=True) == {"total": 0}
    model = nn.Linear(1, 1)
    assert context.autocast_forward_pass(model) is model
    assert context.get_enable_tensorboard_logging() is True


def test_determined_env_is_refused_with_the_methods_to_use(lab: Any) -> None:
    with pytest.raises(
        DetError, match=r"context.env is not in det; use the context's get_hparams\(\)"
    ):
        lab.context().env  # noqa: B018 - the access is what is tested
