"""Compares training with the framework alone, and on two ranks over each backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from det_core.checkpoint import read_checkpoint
from det_core.errors import ConfigError
from det_core.hooks import Plugins
from det_core.hooks.records import Framework
from det_core.ranks.backend import BackendRecord
from det_core.ranks.choice import choose_backend
from det_core.train.adapter import Stop
from det_core.train.metrics import number

from ._onevar import OneVar
from ._play import Cast, Request, play
from ._runs import Run, Runs
from ._suite import Suite

Variants = Mapping[str, type | str]
Evaluate = Callable[[type, Path, OneVar], Mapping[str, float]]
Plain = Callable[[type, OneVar, int], tuple[Sequence[float], Mapping[str, float]]]
SPREAD: dict[str, Any] = {"spread": 0.5, "global_batch_size": 4}
_NOISY: dict[str, Any] = {"noise": 0.5, "shuffle": True, **SPREAD}
_TWO, _THREE = ({**SPREAD, "validation_batches": batches} for batches in (2, 3))
_MODEL = OneVar(**SPREAD)


@dataclass(frozen=True)
class Played:
    """The results of two ranks.

    `alone` runs the same trial in this process, with the same checkpoints.
    """

    ranks: list[dict[str, Run]]
    alone: Runs
    folder: Path

    def __getitem__(self, name: str) -> Run:
        """Return the chief's result of a request."""
        return self.ranks[0][name]


class NumbersSuite(Suite):
    """The part of `AdapterSuite` that compares results.

    The fixtures `variants`, `evaluate` and `plain` are optional. All runs over one backend share a
    pair of processes, which import the trial class by its module's name.
    """

    _played: ClassVar[dict[tuple[type, str], Played | Exception]] = {}

    @pytest.fixture
    def variants(self) -> Variants:
        """Trial classes by name that train like the trial and have a feature of real models.

        A text in place of a class is the reason why there is none.

        - `buffered` has state that no reduction of gradients keeps equal on all ranks, such as
          BatchNorm's statistics. Its `val_loss` depends on that state, and its losses are its own.
        - `finishing` doubles the weight when training ends, by a callback or what the framework has
          instead.
        - `scheduled` has a learning rate that falls linearly with each batch, from `lr` to 0 at the
          trial's length, which the framework gives it.
        - `sharded` has training data that gives each rank its share of each batch, and declares it.
        - `streamed` has training data that has no length and does not depend on ranks.
        - `bypassing` steps its optimizer without det.
        """
        return {}

    @pytest.fixture
    def evaluate(self) -> Evaluate:
        """A function of a trial class, a checkpoint's directory and settings.

        It returns the metrics of a validation by the framework alone.
        """
        pytest.skip("no fixture `evaluate`")

    @pytest.fixture
    def plain(self) -> Plain:
        """A function of a trial class, settings and a number of batches.

        It trains by the framework alone, and returns the batches' losses and the metrics of a
        validation.
        """
        pytest.skip("no fixture `plain`")

    @pytest.mark.parametrize("kind", ["trial", "buffered", "finishing", "scheduled"])
    def test_trains_as_the_framework_alone(
        self, run: Runs, kind: str, plain: Plain, variants: Variants, trial: type
    ) -> None:
        """Losses and validation metrics are equal bit for bit."""
        chosen = the(kind, {"trial": trial, **variants})
        losses, validation = plain(chosen, OneVar(**SPREAD), 8)
        result = run.of(chosen)(8, **SPREAD)
        assert list(result.losses.values()) == [float(loss) for loss in losses]
        same(result.validations[8], validation)

    @pytest.mark.parametrize("kind", ["trial", "buffered", "finishing"])
    def test_a_report_is_what_the_checkpoint_evaluates_to(
        self,
        run: Runs,
        kind: str,
        evaluate: Evaluate,
        variants: Variants,
        trial: type,
        tolerance: float,
    ) -> None:
        """The framework alone loads the checkpoint, as a user of the model does."""
        chosen = the(kind, {"trial": trial, **variants})
        result = run.of(chosen)(7, **SPREAD)
        with read_checkpoint(run.storage, result.checkpoints[7]) as (path, _):
            same(result.validations[7], evaluate(chosen, path, OneVar(**SPREAD)), tolerance)

    @pytest.mark.parametrize("preempt_at", [5, 8, None])
    def test_end_hooks_change_only_the_last_report_and_checkpoint(
        self, run: Runs, variants: Variants, preempt_at: int | None, tolerance: float
    ) -> None:
        """It is not applied at an earlier target, nor in a run that is preempted.

        That holds even for a preemption after the last batch.
        """
        finishing, model = run.of(the("finishing", variants)), OneVar()
        first = finishing(4, 8, preempt_at=preempt_at)
        assert first.validations[4]["weight"] == pytest.approx(model.weight(4), rel=tolerance)
        saved, ended = (
            first.checkpoints[preempt_at or 8],
            pytest.approx(2 * model.weight(8), rel=tolerance),
        )
        with finishing.adapter() as adapter, read_checkpoint(run.storage, saved) as (path, _):
            adapter.load(path)
            weight = number("weight", adapter.validate()["weight"])
        assert weight == (
            pytest.approx(model.weight(preempt_at), rel=tolerance) if preempt_at else ended
        )
        assert finishing(8, checkpoint=saved).weight == ended

    def test_a_schedule_is_made_from_the_trials_length(
        self, run: Runs, variants: Variants, tolerance: float
    ) -> None:
        """It does not depend on the searcher's first target, and is the same in a resumed run."""
        scheduled, model = run.of(the("scheduled", variants)), OneVar()
        first = scheduled(4, 8, preempt_at=6)
        losses = {**first.losses, **scheduled(8, checkpoint=first.checkpoints[6]).losses}
        assert losses == pytest.approx(
            {n + 1: model.loss(n, length=8) for n in range(8)}, rel=tolerance
        )

    # On two ranks

    @pytest.fixture(params=["native", "horovod"])
    def ranks(
        self,
        request: pytest.FixtureRequest,
        plugins: Plugins,
        trial: type,
        variants: Variants,
        framework: Framework,
        hooks: str,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Played:
        """The results of two ranks over a backend. Do not override it."""
        backend = backend_or_skip(request.param, framework, plugins)
        key = (type(self), request.param)
        if key not in self._played:
            folder = tmp_path_factory.mktemp(f"ranks-{framework.name}-{request.param}")
            cast = Cast(trial=trial, framework=framework.name, hooks=hooks, backend=backend.name)
            alone = Runs(plugins, trial, folder)
            try:
                requests = list(_requests(alone, framework, variants))
                self._played[key] = Played(play(cast, requests, folder), alone, folder)
            except Exception as error:
                self._played[key] = error
        found = self._played[key]
        if isinstance(found, Exception):
            raise found
        return found

    def test_two_ranks_give_the_weight_and_the_losses_of_one(
        self, ranks: Played, tolerance: float
    ) -> None:
        """Each rank trains its share of every batch.

        Gradients and reports are the means over both.
        """
        assert ranks["plain"].weight == pytest.approx(_MODEL.weight(8), rel=tolerance)
        assert ranks["plain"].losses == pytest.approx(
            {n + 1: _MODEL.loss(n) for n in range(8)}, rel=tolerance
        )

    def test_two_ranks_validate_every_record_once(self, ranks: Played, tolerance: float) -> None:
        """One of the ranks has no batch to validate, or fewer than the other."""
        assert ranks["plain"].validations[8]["val_loss"] == pytest.approx(
            _MODEL.validation_loss(8), rel=tolerance
        )
        three = OneVar(**_THREE).validation_loss(12)
        assert ranks["of one"].validations[12]["val_loss"] == pytest.approx(three, rel=tolerance)

    def test_two_ranks_report_what_the_checkpoint_evaluates_to(
        self, ranks: Played, variants: Variants, evaluate: Evaluate, tolerance: float
    ) -> None:
        """The model has statistics that no reduction of gradients keeps equal."""
        run = the("buffered", {**variants, **ranks.ranks[0]})
        with read_checkpoint(ranks.alone.storage, run.checkpoints[8]) as (path, _):
            same(
                run.validations[8],
                evaluate(the("buffered", variants), path, OneVar(**_TWO)),
                tolerance,
            )

    @pytest.mark.parametrize("kind", ["finishing", "sharded", "streamed", "bypassing"])
    def test_two_ranks_train_a_variant_as_one_would(
        self, ranks: Played, variants: Variants, kind: str, tolerance: float
    ) -> None:
        """No record is lost or trained twice, and each rank ends training.

        `bypassing` may be refused.
        """
        run = the(kind, {**variants, **ranks.ranks[0]})
        assert run.error or run.weight == pytest.approx(
            (1 + (kind == "finishing")) * _MODEL.weight(8), rel=tolerance
        )

    def test_two_ranks_train_every_record_once_in_an_epoch(
        self, ranks: Played, tolerance: float
    ) -> None:
        """The order is shuffled.

        With the learning rate 0, an epoch's losses add up to those of its records.
        """
        losses, length = ranks["still"].losses, _MODEL.batches_per_epoch
        whole = sum(_MODEL.square(batch) for batch in range(length))
        for first in (1, 1 + length):
            assert sum(losses[n] for n in range(first, first + length)) == pytest.approx(
                whole, rel=tolerance
            )

    def test_two_ranks_end_at_the_same_batch(self, ranks: Played) -> None:
        """Both ranks stop for the same reason, whether they are complete or preempted."""
        for name, stop, batches in (("plain", Stop.COMPLETED, 8), ("preempted", Stop.PREEMPTED, 5)):
            assert [rank[name].stop for rank in ranks.ranks] == [stop] * 2
            assert max(ranks[name].reports) == batches

    def test_two_ranks_resume_exactly(self, ranks: Played) -> None:
        """They resume inside an epoch, with noise and shuffling.

        Every rank restores its own random numbers.
        """
        whole, second = ranks["noisy"], ranks["resumed"]
        assert second.losses == {
            batches: loss for batches, loss in whole.losses.items() if batches > 7
        }
        assert second.weight == whole.weight

    def test_two_ranks_that_are_preempted_go_on_exactly(self, ranks: Played) -> None:
        whole, first, second = ranks["noisy"], ranks["preempted"], ranks["gone on"]
        assert list(first.checkpoints) == [5]
        assert {**first.losses, **second.losses} == whole.losses
        assert second.weight == whole.weight

    def test_a_checkpoint_of_two_ranks_is_restored_on_one(
        self, ranks: Played, tolerance: float
    ) -> None:
        """Positions count the batches of all ranks, so the place in the data is the same."""
        one = ranks.alone(12, checkpoint=ranks["plain"].checkpoints[7], **SPREAD)
        assert one.losses == pytest.approx(
            {n + 1: _MODEL.loss(n) for n in range(7, 12)}, rel=tolerance
        )
        assert one.weight == pytest.approx(_MODEL.weight(12), rel=tolerance)

    def test_a_checkpoint_of_one_rank_is_restored_on_two(
        self, ranks: Played, tolerance: float
    ) -> None:
        two = ranks["of one"]
        assert two.losses == pytest.approx(
            {n + 1: _MODEL.loss(n) for n in range(7, 12)}, rel=tolerance
        )
        assert two.weight == pytest.approx(_MODEL.weight(12), rel=tolerance)

    def test_the_chief_alone_reports_and_writes(self, ranks: Played) -> None:
        """There are only the checkpoints that it reported, and no rank leaves a temporary file."""
        chief, other = ranks.ranks
        assert [run for run in other.values() if run.events] == []
        saved = [uuid for run in chief.values() for uuid in run.checkpoints.values()]
        theirs = {manifest.name for manifest in (ranks.folder / "checkpoints").iterdir()}
        assert len(saved) == len(set(saved))
        assert set(saved) <= theirs
        # TensorFlow may compile some of its code there.
        assert {path.name for path in (ranks.folder / "scratch").iterdir()} <= {"__pycache__"}

    def test_two_ranks_aggregate_gradients(
        self, ranks: Played, framework: Framework, tolerance: float
    ) -> None:
        """`optimizations.aggregation_frequency: 2` works as on one rank.

        Waiting gradients are in the checkpoint.
        """
        needs(framework, "aggregation")
        losses = {n + 1: _MODEL.loss(n, aggregation=2) for n in range(8)}
        assert ranks["aggregated"].losses == pytest.approx(losses, rel=tolerance)
        assert ranks["aggregated"].weight == pytest.approx(
            _MODEL.weight(8, aggregation=2), rel=tolerance
        )
        whole, second = ranks["noisy, aggregated"], ranks["resumed, aggregated"]
        assert second.losses == {
            batches: loss for batches, loss in whole.losses.items() if batches > 7
        }
        assert second.weight == whole.weight


def the(kind: str, variants: Mapping[str, Any]) -> Any:
    """Return a variant or its result. Skip the test if there is none, or a reason why not."""
    found = variants.get(kind, f"`variants` has no `{kind}`")
    return pytest.skip(found) if isinstance(found, str) else found


def same(report: Mapping[str, Any], oracle: Mapping[str, float], tolerance: float = 0.0) -> None:
    """Check that a report has the metrics of the framework alone, and that there are any."""
    expected = {name: float(value) for name, value in oracle.items()}
    assert expected
    assert {name: report.get(name) for name in expected} == pytest.approx(
        expected, rel=tolerance, abs=0.0
    )


def needs(framework: Framework, capability: str) -> None:
    """Skip the test if the framework does not name a capability."""
    if capability not in framework.capabilities:
        pytest.skip(f"{framework.name} does not name the capability {capability}")


def backend_or_skip(name: str, framework: Framework, plugins: Plugins) -> BackendRecord:
    """Return the framework's backend of a name. Skip the test if it is not available."""
    needs(framework, "ranks")
    try:
        return choose_backend(name, framework.name, plugins.backends())
    except ConfigError as error:
        pytest.skip(str(error))


def _requests(alone: Runs, framework: Framework, variants: Variants) -> Iterator[Request]:
    """Yield all runs on two ranks. A run on one rank that they need is executed here."""
    yield Request(name="plain", length=8, save_at=[7], hparams=SPREAD)
    yield Request(name="still", length=10, hparams={**SPREAD, "shuffle": True, "lr": 0.0})
    yield Request(name="noisy", length=12, save_at=[7], hparams=_NOISY)
    yield Request(name="resumed", length=12, behind=("noisy", 7), hparams=_NOISY)
    yield Request(name="preempted", length=12, preempt_at=5, hparams=_NOISY)
    yield Request(name="gone on", length=12, behind=("preempted", 5), save_at=[7], hparams=_NOISY)
    of_one = alone(12, preempt_at=7, **SPREAD).checkpoints[7]
    yield Request(name="of one", length=12, checkpoint=of_one, hparams=_THREE)
    if "aggregation" in framework.capabilities:
        yield Request(name="aggregated", length=8, aggregation=2, hparams=SPREAD)
        yield Request(
            name="noisy, aggregated", length=12, save_at=[7], aggregation=2, hparams=_NOISY
        )
        resumed = ("noisy, aggregated", 7)
        yield Request(
            name="resumed, aggregated", length=12, behind=resumed, aggregation=2, hparams=_NOISY
        )
    for name in ("buffered", "finishing", "sharded", "streamed", "bypassing"):
        if isinstance(trial := variants.get(name), type):
            yield Request(
                name=name, length=8, hparams=_TWO, trial=trial, may_be_refused=name == "bypassing"
            )
