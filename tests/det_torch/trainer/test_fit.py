"""Training with a Trainer, in one's own process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import det_torch
from det_core import DetError, MetricError, Plugins, RunInfo, Stop, TrialError
from det_core.config import ExperimentConfig
from det_core.ranks.distributed import DistributedContext
from det_torch import Batch, Epoch, LRScheduler, PyTorchCallback, PyTorchTrial, Trainer

SEARCHER = {"name": "single", "metric": "score", "smaller_is_better": False}


def positions(reports: list[Any]) -> list[int]:
    return [report.batches for report in reports]


def test_the_result_says_why_it_stopped_and_what_came_of_it(train):
    result = train(max_length=Epoch(3), validation_period=Epoch(1)).result
    assert (result.stop, result.batches) == (Stop.COMPLETED, 18)
    assert positions(result.validation) == [6, 12, 18]
    assert positions(result.training) == [4, 6, 8, 12, 16, 18]
    assert result.latest.batches == 18
    assert result.best is not None
    assert Path(result.best.path, "state_dict.pth").is_file()
    best = {r.batches: r.metrics["validation_loss"] for r in result.validation}[result.best.batches]
    assert (result.best_metric, result.best_value) == ("validation_loss", best)


def test_parts_from_build_methods_train_like_wrapped_ones(train, line):
    class Built(line):
        def __init__(self, context):
            self.interrupt, self.seen = None, []
            super(line, self).__init__(context)

        def build_model(self):
            return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))

        def build_optimizer(self, model):
            return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

        def build_lr_scheduler(self, optimizer):
            return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)

    assert train(Built, max_length=Batch(13)).reports == train(max_length=Batch(13)).reports


def test_the_seed_decides_and_torchs_generator_decides_the_seed(train):
    first = train(max_length=Batch(4)).reports
    assert train(max_length=Batch(4)).reports == first
    seeded = {"reproducibility": {"experiment_seed": 3}}
    assert train(exp_conf=seeded, max_length=Batch(4)).reports != first


class Scored(PyTorchTrial):
    """Validates to the values that `scores` lists, one after another."""

    scores = (1.0, 3.0, 2.0, 4.0)

    def __init__(self, context):
        self.context, self.count = context, 0
        self.model = context.wrap_model(nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        return [torch.ones(2, 1)] * 2

    def build_validation_data_loader(self):
        return [torch.ones(2, 1)]

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch):
        self.count += 1
        return {"score": self.scores[self.count - 1], "loss": 10.0 - self.count}


@pytest.mark.parametrize(
    ("policy", "exp_conf", "saved", "best"),
    [
        ("best", {"searcher": SEARCHER}, [2, 4, 8], 8),
        ("best", {"searcher": {**SEARCHER, "smaller_is_better": True}}, [2, 8], 2),
        ("best", None, [2, 4, 6, 8], 8),  # by "loss", which falls
        ("all", {"searcher": SEARCHER}, [2, 4, 6, 8], 8),
        ("none", {"searcher": SEARCHER}, [8], 8),
    ],
)
def test_the_policy_says_after_which_validations_to_save(train, policy, exp_conf, saved, best):
    done = train(
        Scored,
        exp_conf=exp_conf,
        max_length=Batch(8),
        validation_period=Batch(2),
        checkpoint_policy=policy,
    )
    assert [c.batches for c in done.result.checkpoints] == saved
    assert done.result.best.batches == best


def test_every_validation_is_the_best_without_a_known_metric(train):
    class Nameless(Scored):
        def evaluate_batch(self, batch):
            return {"glory": 1.0}

    result = train(Nameless, max_length=Batch(4), validation_period=Batch(1)).result
    assert [c.batches for c in result.checkpoints] == [1, 2, 3, 4]
    assert (result.best.batches, result.best_metric, result.best_value) == (4, None, None)


def test_a_nan_is_never_the_best(train):
    class Nan(Scored):
        scores = (float("nan"), 1.0, float("nan"))

    result = train(
        Nan, exp_conf={"searcher": SEARCHER}, max_length=Batch(3), validation_period=Batch(1)
    ).result
    assert (result.best.batches, result.best_value) == (2, 1.0)


def test_periods_may_be_containers_of_absolute_positions(train):
    result = train(
        max_length=Batch(10), validation_period=Batch([3, 7]), checkpoint_period=Epoch([1])
    ).result
    assert positions(result.validation) == [3, 7, 10]
    assert 6 in [c.batches for c in result.checkpoints]


def test_periods_default_to_the_configuration(train):
    conf = {"min_validation_period": {"epochs": 1}, "perform_initial_validation": True}
    result = train(exp_conf=conf, max_length=Epoch(2)).result
    assert positions(result.validation) == [0, 6, 12]


@pytest.mark.parametrize(
    ("length", "batches"), [({"batches": 7}, 7), ({"epochs": 2}, 12), ({"records": 20}, 5)]
)
def test_the_length_defaults_to_the_configuration(train, length, batches):
    hparams = {"global_batch_size": 4}
    conf = {"searcher": {**SEARCHER, "metric": "validation_loss", "max_length": length}}
    assert train(exp_conf=conf, hparams=hparams).result.batches == batches
    assert train(exp_conf=conf, hparams=hparams, max_length=Batch(3)).result.batches == 3


def test_step_zero_validation_comes_before_the_first_batch(train):
    assert positions(train(max_length=Batch(2), step_zero_validation=True).result.validation) == [
        0,
        2,
    ]


def test_test_mode_trains_one_batch_validates_one_and_saves(train):
    result = train(test_mode=True).result
    assert (result.batches, positions(result.validation), len(result.checkpoints)) == (1, [1], 1)


def test_a_stop_that_the_trial_asks_for_ends_it_well(train, line):
    class Stopping(line):
        def train_batch(self, batch, epoch_idx, batch_idx):
            if batch_idx == 4:
                self.context.set_stop_requested(True)
            return super().train_batch(batch, epoch_idx, batch_idx)

    result = train(Stopping, max_length=Batch(10)).result
    assert (result.stop, result.batches) == (Stop.USER_STOPPED, 5)
    assert positions(result.validation) == [5]


def test_progress_is_printed_line_by_line(train, capsys):
    train(
        exp_conf={"reproducibility": {"experiment_seed": 5}},
        max_length=Batch(8),
        validation_period=Batch(4),
    )
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == "training LineTrial until batch 8 on cpu; seed 5; checkpoints go to checkpoints"
    )
    assert lines[1].startswith("batch 4/8  loss ")
    assert lines[2].startswith("batch 4/8  validation: validation_loss ")
    assert any(
        line.startswith("batch 4/8  checkpoint: checkpoints/") for line in lines[3:-2]
    )  # when it is written
    assert lines[-2].startswith("complete at batch 8 after ")
    assert lines[-1].startswith("best checkpoint (validation_loss ")


def test_a_loss_that_is_nan_is_noticed_once(train, line, capsys):
    class Diverging(line):
        def train_batch(self, batch, epoch_idx, batch_idx):
            return {"loss": super().train_batch(batch, epoch_idx, batch_idx)["loss"] * float("nan")}

    train(Diverging, max_length=Batch(8))
    noticed = [line for line in capsys.readouterr().out.splitlines() if "notice" in line]
    (notice,) = noticed
    assert notice.startswith("notice: the training metric 'loss' is nan at batch 1; ")


def test_checkpoints_go_where_the_configuration_says(train, tmp_path):
    conf = {"checkpoint_storage": {"type": "directory", "container_path": str(tmp_path / "there")}}
    result = train(exp_conf=conf, max_length=Batch(2)).result
    assert Path(result.latest.path).parent == tmp_path / "there"
    assert not Path("checkpoints").exists()


def test_aggregation_may_be_asked_for_by_the_script(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    steps = []

    class Counting(line):
        def train_batch(self, batch, epoch_idx, batch_idx):
            before = self.model[0].weight.detach().clone()
            result = super().train_batch(batch, epoch_idx, batch_idx)
            steps.append(not torch.equal(before, self.model[0].weight))
            return result

    with det_torch.init(aggregation_frequency=3) as context:
        Trainer(Counting(context), context).fit(max_length=Batch(6))
    assert steps == [False, False, True] * 2


def test_hyperparameters_override_constants_of_the_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    conf = {
        "hyperparameters": {
            "a": 1,
            "b": 2,
            "c": {"d": 3},
            "lr": {"type": "double", "minval": 0, "maxval": 1},
        }
    }
    with det_torch.init(hparams={"b": 20}, exp_conf=conf) as context:
        assert context.get_hparams() == {"a": 1, "b": 20, "c": {"d": 3}}


@pytest.mark.parametrize(
    ("fit", "error", "message"),
    [
        ({}, ValueError, r"max_length is missing; give fit\(max_length=Batch\(n\)\) or Epoch\(n\)"),
        ({"max_length": 10}, TypeError, r"10 is no unit; give Batch\(n\) or Epoch\(n\)"),
        ({"max_length": Batch(3), "validation_period": 2}, TypeError, r"2 is no unit"),
        (
            {"max_length": Batch([3])},
            TypeError,
            r"Batch\(\[3\]\) is no length; give a whole number",
        ),
        ({"max_length": Batch(0)}, ValueError, r"max_length is Batch\(0\); give a positive number"),
        (
            {"max_length": Batch(3), "checkpoint_policy": "some"},
            ValueError,
            r"'some'; give one of best, all, none",
        ),
        (
            {"max_length": Batch(3), "latest_checkpoint": "nowhere"},
            DetError,
            r"latest_checkpoint is 'nowhere', which is n",
        ),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(train, fit, error, message):
    with pytest.raises(error, match=message):
        train(**fit)


def test_a_frequency_that_cannot_be_meant_is_refused():
    with (
        pytest.raises(
            DetError, match=r"aggregation_frequency is 0; give a whole number of 1 or more"
        ),
        det_torch.init(aggregation_frequency=0),
    ):
        pass


def test_a_period_in_records_needs_a_batch_size(train):
    conf = {"min_validation_period": {"records": 10}}
    with pytest.raises(
        ValueError, match=r"a period of 10 records cannot be counted without a global_batch_size"
    ):
        train(Scored, exp_conf=conf, max_length=Batch(2))
    result = train(
        Scored, {"global_batch_size": 2}, conf, max_length=Batch(10), checkpoint_policy="none"
    ).result
    assert positions(result.validation) == [5, 10]


def test_code_that_cannot_be_copied_is_left_out_with_a_warning(train):
    train(max_length=Batch(1))
    Path("outside.py").symlink_to("/etc/hostname")
    with pytest.warns(
        UserWarning, match=r"the checkpoints of this run hold no code: .*outside.py is a link"
    ):
        result = train(max_length=Batch(2)).result
    assert not Path(result.latest.path, "code").exists()


def test_the_profilers_older_name_says_what_to_do(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    with det_torch.init() as context:
        trainer = Trainer(line(context), context)
        with pytest.warns(UserWarning, match=r"has no effect; call fit\(profiling_enabled=True\)"):
            trainer.configure_profiler(enabled=True)


def test_an_epoch_needs_data_with_a_length(train):
    class Endless(Scored):
        def build_training_data_loader(self):
            return iter(lambda: torch.ones(2, 1), None)

    with pytest.raises(
        DetError, match=r"Epoch\(1\) cannot be counted, as the training data has no length"
    ):
        train(Endless, max_length=Epoch(1))


def test_the_searchers_metric_must_be_there(train):
    with pytest.raises(
        MetricError,
        match=r"searcher.metric is 'score', but the validation returned validation_loss",
    ):
        train(exp_conf={"searcher": SEARCHER}, max_length=Batch(2))


def test_a_trainer_needs_a_trial_and_its_context(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with (
        det_torch.init() as context,
        pytest.raises(TrialError, match=r"Trainer got str; give an instance"),
    ):
        Trainer("trial", context)  # type: ignore[arg-type]
    run = RunInfo(
        config=ExperimentConfig(),
        hparams={},
        seed=0,
        build=Plugins().build("torch"),
        distributed=DistributedContext(),
    )
    foreign = det_torch.PyTorchTrialContext(run, torch.device("cpu"))
    with pytest.raises(TrialError, match=r"Trainer needs the context of det_torch.init\(\)"):
        Trainer(Scored(foreign), foreign)


def test_profiling_enabled_reports_the_load_of_the_machine(train, line, monkeypatch):
    from det_core.core import ProfilerContext

    switched = []
    monkeypatch.setattr(ProfilerContext, "on", lambda self: switched.append(self._steps.completed))
    train(max_length=Batch(2), profiling_enabled=True)
    assert switched == [0]


# Defects of the harness that went before, each done right


def test_defect_4_finite_torch_loader_is_read_in_each_epoch(train, line):
    """Its last batch was followed by an endless loop."""

    class Bare(line):
        def build_training_data_loader(self):
            return torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(torch.ones(8, 3), torch.ones(8, 1)), batch_size=4
            )

    done = train(Bare, max_length=Epoch(3))
    assert (done.result.batches, done.trial.seen) == (6, [0, 1, 2, 3, 4, 5])


def test_defect_5_checkpoints_are_not_copied_into_checkpoints(train):
    """The copy of the code went on into itself, and each checkpoint held all those before it."""
    train(max_length=Batch(1))
    Path("helper.py").write_text("x = 1\n")
    result = train(max_length=Batch(4), checkpoint_period=Batch(1)).result
    code = Path(result.latest.path, "code")
    assert [p.relative_to(code).as_posix() for p in code.rglob("*")] == ["helper.py"]


def test_files_of_other_runs_are_not_copied_into_checkpoints(train):
    """A script that takes turns with two storages copied all of each into the other."""
    Path("helper.py").write_text("x = 1\n")
    for storage in ("one", "two", "one"):
        place = {"type": "shared_fs", "host_path": str(Path(storage).resolve())}
        result = train(exp_conf={"checkpoint_storage": place}, max_length=Batch(1)).result
    code = Path(result.latest.path, "code")
    assert [p.relative_to(code).as_posix() for p in code.rglob("*")] == ["helper.py"]


def test_defect_6_hyperparameters_need_no_configuration(train):
    """They became null, so that the trial could not be made again."""
    result = train(hparams={"width": 7}, max_length=Batch(1)).result
    kept = json.loads(Path(result.latest.path, "load_data.json").read_text())
    assert kept["hparams"] == {"width": 7}


def test_defect_9_local_run_writes_events_below_tensorboard(train, line):
    """It fell into ./runs."""

    class Writing(line):
        def train_batch(self, batch, epoch_idx, batch_idx):
            self.context.get_tensorboard_writer().add_scalar("mine", batch_idx, batch_idx)
            return super().train_batch(batch, epoch_idx, batch_idx)

    pytest.importorskip("tensorboard")
    train(Writing, max_length=Batch(2))
    assert not Path("runs").exists()
    assert list(Path("tensorboard").glob("*/events*"))


def test_defect_10_scheduler_of_steps_counts_optimizer_steps(tmp_path, monkeypatch, line):
    """Its frequency counted batches: with 4 batches to a step, a frequency of 2 was one of 1."""
    monkeypatch.chdir(tmp_path)

    class Stepped(line):
        def __init__(self, context):
            super().__init__(context)
            context.lr_schedulers.clear()
            scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)
            context.wrap_lr_scheduler(
                scheduler, LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP, frequency=2
            )

    with det_torch.init(aggregation_frequency=4) as context:
        trial = Stepped(context)
        Trainer(trial, context).fit(max_length=Batch(20))
    assert trial.optimizer.param_groups[0]["lr"] == 0.02 * 0.5**2


def test_reports_become_event_files_unless_that_is_switched_off(tmp_path, monkeypatch, line):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    monkeypatch.chdir(tmp_path)
    with det_torch.init(enable_tensorboard_logging=False) as context:
        Trainer(line(context), context).fit(max_length=Batch(2))
    assert not Path("tensorboard").exists()
    with det_torch.init() as context:
        Trainer(line(context), context).fit(max_length=Batch(2))
    (directory,) = Path("tensorboard").iterdir()
    events = event_accumulator.EventAccumulator(str(directory))
    events.Reload()
    assert {"Determined/loss", "Determined/validation_loss"} <= set(events.Tags()["scalars"])


def test_callbacks_are_called_in_their_documented_order(train, line):
    calls = []

    class Noting(PyTorchCallback):
        def on_trial_startup(self, first_batch_idx, checkpoint_uuid):
            calls.append(("startup", first_batch_idx, checkpoint_uuid))

        def on_training_start(self):
            calls.append("training start")

        def on_training_epoch_start(self, epoch_idx):
            calls.append(("epoch start", epoch_idx))

        def on_training_epoch_end(self, epoch_idx):
            calls.append(("epoch end", epoch_idx))

        def on_validation_end(self, metrics):
            calls.append("validation end")

        def on_checkpoint_write_end(self, checkpoint_dir):
            calls.append("written")

        def on_trial_shutdown(self):
            calls.append("shutdown")

    class Watched(line):
        def build_callbacks(self):
            return {"noting": Noting()}

    train(Watched, max_length=Epoch(1))
    assert calls == [
        ("startup", 0, None),
        "training start",
        ("epoch start", 0),
        ("epoch end", 0),
        "written",
        "validation end",
        "shutdown",
    ]


def test_a_trial_of_the_oldest_api_is_trained_in_two_parts(tmp_path, monkeypatch):
    """Its `train_batch` takes the model and only returns the loss."""
    monkeypatch.chdir(tmp_path)

    class Oldest(PyTorchTrial):
        def build_model(self):
            return nn.Linear(1, 1)

        def optimizer(self, model):
            return torch.optim.SGD(model.parameters(), lr=0.1)

        def build_training_data_loader(self):
            return [torch.ones(2, 1)] * 2

        def build_validation_data_loader(self):
            return [torch.ones(2, 1)]

        def train_batch(self, batch, model, epoch_idx, batch_idx):
            return {"loss": model(batch).mean()}

        def evaluate_batch(self, batch, model):
            return {"loss": model(batch).mean()}

    with det_torch.init() as context:
        trainer = Trainer(Oldest(context), context)
        first = trainer.fit(max_length=Batch(2)).validation[-1].metrics["loss"]
        assert trainer.fit(max_length=Batch(4)).validation[-1].metrics["loss"] < first


class Doubling(PyTorchCallback):
    """Has the last word on the weights, and says so."""

    def __init__(self, trial):
        self.trial = trial

    def on_training_end(self):
        self.trial.ended.append(self.trial.seen[-1] + 1 if self.trial.seen else 0)
        with torch.no_grad():
            for parameter in self.trial.model.parameters():
                parameter.mul_(2)


@pytest.fixture
def doubling(line):
    class DoublingTrial(line):
        def __init__(self, context):
            super().__init__(context)
            self.ended, self.lengths = [], []

        def build_callbacks(self):
            return {"doubling": Doubling(self)}

        def train_batch(self, batch, epoch_idx, batch_idx):
            self.lengths.append(str(self.context.run.length))
            return super().train_batch(batch, epoch_idx, batch_idx)

        def evaluate_batch(self, batch):
            return {
                **super().evaluate_batch(batch),
                "weight": sum(p.sum() for p in self.model.parameters()),
            }

    return DoublingTrial


def saved_weight(checkpoint):
    state = torch.load(Path(checkpoint.path) / "state_dict.pth", weights_only=True)[
        "models_state_dict"
    ][0]
    return sum(tensor.sum().item() for tensor in state.values())


def test_changes_by_an_end_callback_are_validated_and_saved(train, line, doubling):
    plain = train(line, max_length=Batch(9))
    done = train(doubling, max_length=Batch(9), validation_period=Batch(3), checkpoint_policy="all")
    assert done.trial.ended == [9]
    assert all(torch.equal(a, 2 * b) for a, b in zip(done.weights, plain.weights, strict=True))
    for report, checkpoint in zip(done.result.validation, done.result.checkpoints, strict=True):
        assert report.metrics["weight"] == pytest.approx(saved_weight(checkpoint), abs=1e-5)


def test_interrupted_run_saves_before_the_end_and_resumes_to_it(train, line, doubling):
    plain = train(line, max_length=Batch(9))
    first = train(doubling, {"interrupt": 8}, max_length=Batch(9))
    assert (first.result.stop, first.result.batches, first.trial.ended) == (Stop.PREEMPTED, 9, [])
    assert saved_weight(first.result.latest) == pytest.approx(
        sum(w.sum().item() for w in plain.weights), abs=1e-5
    )
    second = train(doubling, max_length=Batch(9), latest_checkpoint=first.result.latest.path)
    assert (second.trial.seen, second.trial.ended) == ([], [0])
    assert all(torch.equal(a, 2 * b) for a, b in zip(second.weights, plain.weights, strict=True))
    again = train(doubling, max_length=Batch(9), latest_checkpoint=second.result.latest.path)
    assert (again.trial.ended, again.result.stop) == ([], Stop.COMPLETED)


def test_longer_training_after_an_end_has_its_own_end(train, doubling):
    first = train(doubling, max_length=Batch(4))
    second = train(doubling, max_length=Batch(6), latest_checkpoint=first.result.latest.path)
    assert (first.trial.ended, second.trial.ended) == ([4], [6])


def test_the_run_knows_its_length_before_the_first_batch(train, doubling):
    assert set(train(doubling, max_length=Batch(3)).trial.lengths) == {"3 batches"}
    assert set(train(doubling, max_length=Epoch(1)).trial.lengths) == {"6 batches"}


class Begun(PyTorchCallback):
    """Has something to save from the start of the training on, and notes its checkpoints."""

    def __init__(self) -> None:
        self.written: list[Path] = []

    def on_training_start(self) -> None:
        self.begun = 1

    def on_checkpoint_write_end(self, checkpoint_dir: Path) -> None:
        self.written.append(checkpoint_dir)

    def state_dict(self) -> dict[str, Any]:
        return {"begun": self.begun}


def test_the_first_check_is_after_the_start_and_no_checkpoint(train, line, monkeypatch):
    """Saving is tried under a driver alone, so the test says that there is one."""
    from det_torch.fit import _Recorded

    begun = Begun()
    monkeypatch.setattr(line, "build_callbacks", lambda self: {"begun": begun})
    plain = train(max_length=Batch(4)).reports
    saved = len(begun.written)
    checked = property(lambda adapter: True, lambda adapter, given: None)
    monkeypatch.setattr(_Recorded, "check_first", checked, raising=False)
    del begun.begun
    assert train(max_length=Batch(4)).reports == plain
    assert len(begun.written) == 2 * saved
