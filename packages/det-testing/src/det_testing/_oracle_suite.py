"""What is measured against the framework alone: it begins and ends training, loads the checkpoints, and is the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from det_core.checkpoint import read_checkpoint
from det_core.metrics import number

from ._onevar import OneVar
from ._runs import Runs
from ._suite import Suite

Variants = Mapping[str, type | str]
Evaluate = Callable[[type, Path, OneVar], Mapping[str, float]]
Plain = Callable[[type, OneVar, int], tuple[Sequence[float], Mapping[str, float]]]
SPREAD: dict[str, Any] = {"spread": 0.5, "global_batch_size": 4}


class OracleSuite(Suite):
    """The part of `AdapterSuite` that is about the framework's own numbers. Its fixtures are optional."""

    @pytest.fixture
    def variants(self) -> Variants:
        """Trial classes that train as the trial does, with what real models have beside a weight; for one that cannot be, why.

        The `val_loss` of `buffered` depends on state that no reduction of gradients keeps equal on all ranks, such as the
        statistics of a BatchNorm; its losses are its own. When training ends, a callback of `finishing`, or whatever the framework
        has there, doubles the weight. The learning rate of `scheduled` falls in a line, batch by batch, from `lr` to 0 at the
        trial's length, which it has from the framework. The training data of `sharded` gives each rank its share of each batch,
        and says so; that of `streamed` has no length and knows no ranks. `bypassing` steps its optimizer without det.
        """
        return {}

    @pytest.fixture
    def evaluate(self) -> Evaluate:
        """A function of a trial class, a checkpoint's directory and settings: what a validation by the framework alone reports."""
        pytest.skip("no fixture `evaluate`")

    @pytest.fixture
    def plain(self) -> Plain:
        """A function of a trial class, settings and a number of batches: their losses and a validation, by the framework alone."""
        pytest.skip("no fixture `plain`")

    @pytest.mark.parametrize("kind", ["trial", "buffered", "finishing", "scheduled"])
    def test_trains_as_the_framework_alone(
        self, run: Runs, kind: str, plain: Plain, variants: Variants, trial: type
    ) -> None:
        """Bit for bit, losses and what is validated."""
        chosen = the(kind, {"trial": trial, **variants})
        losses, validation = plain(chosen, OneVar(**SPREAD), 8)
        result = run.of(chosen)(8, **SPREAD)
        assert list(result.losses.values()) == [float(loss) for loss in losses]
        same(result.validations[8], validation)

    @pytest.mark.parametrize("kind", ["trial", "buffered", "finishing"])
    def test_a_report_is_what_the_checkpoint_evaluates_to(
        self, run: Runs, kind: str, evaluate: Evaluate, variants: Variants, trial: type, tolerance: float
    ) -> None:
        """The framework alone loads it, as those do who use the model."""
        chosen = the(kind, {"trial": trial, **variants})
        result = run.of(chosen)(7, **SPREAD)
        with read_checkpoint(run.storage, result.checkpoints[7]) as (path, _):
            same(result.validations[7], evaluate(chosen, path, OneVar(**SPREAD)), tolerance)

    @pytest.mark.parametrize("preempt_at", [5, 8, None])
    def test_what_ends_training_is_in_the_last_report_and_checkpoint_and_in_no_other(
        self, run: Runs, variants: Variants, preempt_at: int | None, tolerance: float
    ) -> None:
        """Not at a target below the trial's length, and not where a run is preempted, even behind the very last batch."""
        finishing, model = run.of(the("finishing", variants)), OneVar()
        first = finishing(4, 8, preempt_at=preempt_at)
        assert first.validations[4]["weight"] == pytest.approx(model.weight(4), rel=tolerance)
        saved, ended = first.checkpoints[preempt_at or 8], pytest.approx(2 * model.weight(8), rel=tolerance)
        with finishing.adapter() as adapter, read_checkpoint(run.storage, saved) as (path, _):
            adapter.load(path)
            weight = number("weight", adapter.validate()["weight"])
        assert weight == (pytest.approx(model.weight(preempt_at), rel=tolerance) if preempt_at else ended)
        assert finishing(8, checkpoint=saved).weight == ended

    def test_a_schedule_is_made_from_the_trials_length(self, run: Runs, variants: Variants, tolerance: float) -> None:
        """From its start, whatever the searcher's first target, and in a run that goes on."""
        scheduled, model = run.of(the("scheduled", variants)), OneVar()
        first = scheduled(4, 8, preempt_at=6)
        losses = {**first.losses, **scheduled(8, checkpoint=first.checkpoints[6]).losses}
        assert losses == pytest.approx({n + 1: model.loss(n, length=8) for n in range(8)}, rel=tolerance)


def the(kind: str, variants: Mapping[str, Any]) -> Any:
    """Return a variant, or what became of it; skip the test where there is none, or a reason why there is none."""
    found = variants.get(kind, f"`variants` has no `{kind}`")
    return pytest.skip(found) if isinstance(found, str) else found


def same(report: Mapping[str, Any], oracle: Mapping[str, float], tolerance: float = 0.0) -> None:
    """Check that a report has the metrics that the framework alone gives, and that it gives some."""
    expected = {name: float(value) for name, value in oracle.items()}
    assert expected
    assert {name: report.get(name) for name in expected} == pytest.approx(expected, rel=tolerance, abs=0.0)
