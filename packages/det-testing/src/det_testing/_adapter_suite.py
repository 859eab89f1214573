"""Tests of any framework's plugin."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from det_core.checkpoint import read_checkpoint
from det_core.errors import CheckpointError, MetricError
from det_core.hooks import Plugins
from det_core.hooks.records import Framework
from det_core.train.adapter import Adapter, Stop
from det_core.train.metrics import number
from det_core.train.schedule import At, Every, Schedule
from det_driver.verify.replay import digest

from ._manners import heavy_modules, hooks_of, imported_by, leftovers, private_imports
from ._numbers_suite import needs
from ._onevar import OneVar
from ._runs import EACH_BATCH, Runs
from ._strict_suite import StrictSuite


class AdapterSuite(StrictSuite):
    """Tests of an adapter.

    Inherit it, and give a trial class of your framework that trains the one-weight model.
    `det_testing.OneVar` defines the hyperparameters that it reads, its data and the expected
    results. A training batch reports `loss`. A validation reports `val_loss`, and the weight as
    `weight`.

    Override `tolerance` if the framework computes in fewer than 32 bits, and `plugins` if your
    plugin is not installed. A framework that names a capability (`aggregation`, `ranks`) is tested
    for it. For `ranks`, two processes import the trial class by the name of its module.

    One weight has little state. Override `strict_trial` too, with a class that has all the state
    that your framework keeps between two batches, and `contents`, which reads all of a checkpoint.
    Then every array of a resumed run is compared, on two ranks, too.
    """

    @pytest.fixture
    def trial(self) -> type:
        """The trial class."""
        raise NotImplementedError(
            "override `trial`: return a trial class that trains the one-weight model"
        )

    @pytest.fixture
    def plugins(self) -> Plugins:
        """The plugins, including yours."""
        return Plugins.installed(strict=True)

    @pytest.fixture
    def tolerance(self) -> float:
        """The largest relative error of numbers that have a closed form."""
        return 1e-4

    @pytest.fixture
    def framework(self, plugins: Plugins, trial: type) -> Framework:
        """The record of your framework."""
        return plugins.framework_of(trial)

    @pytest.fixture
    def hooks(self, framework: Framework) -> str:
        """The name of the module that registers the framework."""
        return hooks_of(framework)

    @pytest.fixture
    def run(self, plugins: Plugins, trial: type, tmp_path: Path) -> Runs:
        """Runs the trial. Do not override it."""
        return Runs(plugins, trial, tmp_path)

    # What is trained, and when

    def test_trains_the_requested_batches(self, run: Runs) -> None:
        """The run ends exactly at its length, also across the end of an epoch."""
        result = run(7)
        assert result.stop is Stop.COMPLETED
        assert list(result.reports) == [1, 2, 3, 4, 5, 6, 7]

    def test_reports_validates_and_checkpoints_at_the_boundaries(self, run: Runs) -> None:
        """Each happens once at its own period, in this order.

        A checkpoint may be written during training.
        """
        schedule = Schedule(report=Every(4), validate=Every(5), checkpoint=Every(6), policy="none")
        events = list(run(10, schedule=schedule).events)
        assert ("training", 6) in events[: events.index(("checkpoint", 6))]
        events.remove(("checkpoint", 6))
        assert events == [
            ("training", 4),
            *(("training", 5), ("validation", 5)),
            *(("training", 6), ("training", 8)),
            *(("training", 10), ("checkpoint", 10), ("validation", 10)),
        ]

    def test_validates_before_it_trains_where_that_is_asked(self, run: Runs) -> None:
        """Validation and checkpoint work before the first batch."""
        result = run(2, schedule=Schedule(validate_first=True, policy="all"))
        assert list(result.validations) == [0, 2]
        assert result.validations[0]["weight"] == 0
        assert list(result.checkpoints) == [0, 2]

    def test_trains_on_when_the_target_is_raised(self, run: Runs, tolerance: float) -> None:
        """The searcher may extend a trial at its target, inside an epoch or at its end."""
        result = run(3, 5, 8)
        assert result.stop is Stop.COMPLETED
        assert list(result.validations) == [3, 5, 8]
        assert result.weight == pytest.approx(OneVar().weight(8), rel=tolerance)

    def test_stops_when_the_searcher_has_had_enough(self, run: Runs) -> None:
        """The reply to a validation may be that it was the last."""
        result = run(3, None, schedule=dataclasses.replace(EACH_BATCH, validate=Every(3)))
        assert result.stop is Stop.COMPLETED
        assert list(result.reports) == [1, 2, 3]

    # Numbers

    def test_weight_has_its_closed_form(self, run: Runs, tolerance: float) -> None:
        """Every batch is trained once, in order, with the given learning rate."""
        for lr in (0.01, 0.05):
            assert run(8, lr=lr).weight == pytest.approx(OneVar(lr=lr).weight(8), rel=tolerance)

    def test_losses_have_their_closed_form(self, run: Runs, tolerance: float) -> None:
        """A batch's loss is computed before its step. The validation's is over several batches."""
        result, model = run(8, validation_batches=3), OneVar(validation_batches=3)
        assert result.losses == pytest.approx(
            {n + 1: model.loss(n) for n in range(8)}, rel=tolerance
        )
        assert result.validations[8]["val_loss"] == pytest.approx(
            model.validation_loss(8), rel=tolerance
        )

    def test_a_report_is_the_mean_over_its_batches(self, run: Runs, tolerance: float) -> None:
        """The mean does not depend on how many batches the framework executes at a time."""
        result, model = run(7, schedule=Schedule(report=Every(4), policy="none")), OneVar()
        means = {
            4: sum(model.loss(n) for n in range(4)) / 4,
            7: sum(model.loss(n) for n in range(4, 7)) / 3,
        }
        assert result.losses == pytest.approx(means, rel=tolerance)

    def test_lengths_are_counted_by_epoch_and_record(self, run: Runs) -> None:
        """The adapter knows the length of an epoch and the size of a batch."""
        with run.adapter(batches_per_epoch=3, global_batch_size=4) as adapter:
            assert (adapter.batches_per_epoch, adapter.global_batch_size) == (3, 4)

    def test_metrics_are_plain_numbers(self, run: Runs) -> None:
        """A report contains no objects of the framework."""
        result = run(3, schedule=Schedule(report=Every(2), validate=Every(2), policy="none"))
        for metrics in (*result.reports.values(), *result.validations.values()):
            assert {
                name: type(value)
                for name, value in metrics.items()
                if type(value) not in {int, float}
            } == {}
            assert json.loads(json.dumps(metrics)) == metrics

    def test_validation_changes_no_weight_and_no_rng(self, run: Runs) -> None:
        """Validating after each batch gives the same training as validating at the end."""
        often = run(6, schedule=dataclasses.replace(EACH_BATCH, validate=Every(1)), noise=0.5)
        assert often.losses == run(6, noise=0.5).losses

    def test_saving_changes_no_weight_and_no_rng(self, run: Runs) -> None:
        """Saving after each batch gives the same training as saving at the end."""
        often = run(6, schedule=dataclasses.replace(EACH_BATCH, checkpoint=Every(1)), noise=0.5)
        assert often.losses == run(6, noise=0.5).losses

    def test_same_seed_same_losses(self, run: Runs) -> None:
        """Noise and the order of the data are seeded."""
        assert run(6, noise=0.5, shuffle=True).losses == run(6, noise=0.5, shuffle=True).losses

    def test_another_seed_gives_other_losses(self, run: Runs) -> None:
        assert run(6, noise=0.5).losses != run(6, noise=0.5, seed=2).losses
        assert run(6, shuffle=True).losses != run(6, shuffle=True, seed=2).losses

    # Checkpoints

    def test_save_and_load_are_inverse(self, run: Runs, tmp_path: Path) -> None:
        """A loaded checkpoint, and one that is saved from it, have the same weight."""
        trained = run(3)
        again = tmp_path / "again"
        again.mkdir()
        with (
            run.adapter() as first,
            read_checkpoint(run.storage, trained.checkpoints[3]) as (path, _),
        ):
            assert _weight(first) == 0
            first.load(path)
            assert _weight(first) == trained.weight
            first.save(again)
        with run.adapter() as second:
            second.load(again)
            assert _weight(second) == trained.weight

    def test_resumes_at_a_boundary(self, run: Runs) -> None:
        """The checkpoint is at the end of a reported period. The data has noise and is shuffled."""
        _resumes_exactly(run, 4, Schedule(report=Every(4), policy="none"))

    def test_resumes_within_an_epoch(self, run: Runs) -> None:
        _resumes_exactly(run, 7, Schedule(report=Every(3), policy="none"))

    def test_resumes_at_an_epochs_last_batch(self, run: Runs) -> None:
        """After the last batch, the epoch is neither repeated nor skipped."""
        _resumes_exactly(run, 5, EACH_BATCH)

    def test_resumes_before_an_epochs_last_batch(self, run: Runs) -> None:
        _resumes_exactly(run, 9, EACH_BATCH)

    def test_a_preempted_run_saves_and_stops(self, run: Runs) -> None:
        """It stops at that batch. A run from its checkpoint continues like an uninterrupted one."""
        whole, first = (
            run(12, noise=0.5, shuffle=True),
            run(12, noise=0.5, shuffle=True, preempt_at=7),
        )
        assert first.stop is Stop.PREEMPTED
        assert list(first.reports) == [1, 2, 3, 4, 5, 6, 7]
        assert list(first.checkpoints) == [7]
        second = run(12, noise=0.5, shuffle=True, checkpoint=first.checkpoints[7])
        assert {**first.losses, **second.losses} == whole.losses
        assert second.weight == whole.weight

    def test_verify_compares_what_decides_how_training_goes_on(self, run: Runs) -> None:
        """`det verify` reads a checkpoint by the record's `tensors`: arrays and plain values.

        They are the same if training is repeated or resumed, and they differ after each batch.
        """
        module, _, function = run.framework.tensors.rpartition(".")
        if not module:
            pytest.skip(
                f"{run.framework.name} names no `tensors`, so that `det verify` compares reports"
                " only"
            )
        read = getattr(import_module(module), function)
        options: dict[str, Any] = {
            "schedule": dataclasses.replace(EACH_BATCH, checkpoint=Every(1)),
            "noise": 0.5,
            "shuffle": True,
        }
        first = run(3, **options)
        others = run(3, **options), run(3, checkpoint=first.checkpoints[2], **options)
        seen: dict[int, set[str]] = {}
        for each in (first, *others):
            for batches, uuid in each.checkpoints.items():
                with read_checkpoint(run.storage, uuid) as (path, _):
                    seen.setdefault(batches, set()).add(digest(read(path)))
        assert {batches: len(digests) for batches, digests in seen.items()} == {1: 1, 2: 1, 3: 1}
        assert len(set.union(*seen.values())) == 3

    def test_a_complete_trial_has_nothing_left_to_train(self, run: Runs) -> None:
        """A run that is resumed at its target ends at once, with the same weight."""
        whole = run(4)
        again = run(4, checkpoint=whole.checkpoints[4])
        assert (again.stop, dict(again.reports)) == (Stop.COMPLETED, {})
        assert again.weight == whole.weight

    def test_a_foreign_checkpoint_is_refused_with_both_names(self, run: Runs) -> None:
        """A checkpoint of another framework is refused before it is opened."""
        foreign = run(1, framework=dataclasses.replace(run.framework, name="another-framework"))
        with pytest.raises(CheckpointError, match="another-framework") as refusal:
            run(2, checkpoint=foreign.checkpoints[1])
        assert repr(run.framework.name) in str(refusal.value)

    # Manners

    def test_missing_searcher_metric_error_lists_reported_metrics(self, run: Runs) -> None:
        with pytest.raises(MetricError, match="'no_such_metric'") as error:
            run(1, schedule=Schedule(metric="no_such_metric"))
        assert "val_loss" in str(error.value)
        assert "weight" in str(error.value)

    def test_registered_under_its_name(
        self, plugins: Plugins, framework: Framework, trial: type
    ) -> None:
        """The record is found by its name.

        Its adapter is an `Adapter`, and the trial class is the framework's.
        """
        assert plugins.frameworks()[framework.name] is not None
        assert issubclass(framework.load(), Adapter)
        base = framework.trial.partition(":")[2]
        assert base in {cls.__qualname__ for cls in trial.__mro__}
        assert any("det_frameworks" in info.hooks and not info.problem for info in plugins.infos)

    def test_hooks_import_no_framework(self, framework: Framework, hooks: str) -> None:
        """Importing the hooks in a new process imports neither the framework nor the adapter."""
        assert imported_by(hooks) & heavy_modules(framework) == set()

    def test_it_imports_public_names_of_core_only(self, framework: Framework) -> None:
        """Names that begin with an underscore may disappear in the next version."""
        assert private_imports(framework.load().__module__) == []

    def test_close_leaves_no_thread_process_or_file_behind(
        self, run: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run leaves nothing, except what the framework keeps once for the process."""
        run(2)
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(scratch))
        before = leftovers()
        run(6, schedule=dataclasses.replace(EACH_BATCH, validate=Every(2), checkpoint=Every(2)))
        assert leftovers() - before == set()
        assert list(scratch.iterdir()) == []

    # By capability

    def test_gradients_are_aggregated(self, run: Runs, tolerance: float) -> None:
        """With a frequency of 2, every second batch steps by the mean of both gradients."""
        needs(run.framework, "aggregation")
        result, model = run(8, aggregation=2), OneVar()
        assert result.weight == pytest.approx(model.weight(8, aggregation=2), rel=tolerance)
        assert result.losses == pytest.approx(
            {n + 1: model.loss(n, aggregation=2) for n in range(8)}, rel=tolerance
        )

    def test_resumes_between_aggregated_gradients(self, run: Runs) -> None:
        """Gradients that wait for their step are part of the checkpoint."""
        needs(run.framework, "aggregation")
        _resumes_exactly(run, 7, EACH_BATCH, aggregation=2)


def _resumes_exactly(run: Runs, at: int, schedule: Schedule, aggregation: int = 1) -> None:
    """Compare a run that saves and continues with one that begins from its checkpoint."""
    saving = dataclasses.replace(schedule, checkpoint=At({at}))
    whole = run(12, schedule=saving, aggregation=aggregation, noise=0.5, shuffle=True)
    checkpoint = whole.checkpoints[at]
    second = run(
        12, schedule=saving, checkpoint=checkpoint, aggregation=aggregation, noise=0.5, shuffle=True
    )
    assert second.losses == {
        batches: loss for batches, loss in whole.losses.items() if batches > at
    }
    assert second.weight == whole.weight


def _weight(adapter: Adapter[object]) -> float:
    return number("weight", adapter.validate()["weight"])
